// Sums over rows, column by column: a task owns a block of columns and goes down the rows in ascending order, so the
// result depends neither on the block nor on the threads.
#pragma once

#include <algorithm>

#include "kernels/types.hpp"

namespace fourfold::kernels {

inline constexpr bool kColumnsOnHost = Kokkos::SpaceAccessibility<Kokkos::HostSpace, Space::memory_space>::accessible;
// A task's sums are a local array of this many.
inline constexpr Index kMaxColumns = kColumnsOnHost ? 1024 : 1;

// Columns a task should own: on a host as few tasks as keep every thread busy (long runs of a row are read faster), on
// a device one column a thread (neighbours read neighbours).
inline Index columns_per_task(const Space& space, Index columns) {
  if constexpr (kColumnsOnHost) {
    const Index share = (columns + space.concurrency() - 1) / space.concurrency();
    return std::clamp<Index>(share, 16, kMaxColumns);
  } else {
    return kMaxColumns;
  }
}

}  // namespace fourfold::kernels
