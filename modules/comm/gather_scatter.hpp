// Parts laid side by side: gathering them and the 32-bit counts that MPI wants. Included by this module's sources only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

#include "comm/call.hpp"

namespace fourfold {

inline std::int64_t total_of(std::span<const std::int64_t> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
}

// Where each part begins.
inline std::vector<std::int64_t> offsets_of(std::span<const std::int64_t> sizes) {
  std::vector<std::int64_t> offsets(sizes.size());
  std::exclusive_scan(sizes.begin(), sizes.end(), offsets.begin(), std::int64_t{0});
  return offsets;
}

// MPI's counts and displacements for the slice [begin, begin + most) of every part, slices side by side.
struct Slices {
  std::vector<int> counts, displacements;
  int total = 0;

  Slices(std::span<const std::int64_t> sizes, std::int64_t begin, std::int64_t most) {
    for (const std::int64_t size : sizes) {
      const auto count = static_cast<int>(std::clamp(size - begin, std::int64_t{0}, most));
      counts.push_back(count);
      displacements.push_back(total);
      total += count;
    }
  }
};

// Slice by slice through `scratch`, when all parts together are over the transfer limit: `exchange(begin, slices,
// scratch)`.
template <class T, class Exchange>
void for_each_round(Call& call, std::span<const std::int64_t> sizes, Exchange&& exchange) {
  const std::int64_t most = call.chunk(sizeof(T), call.size()) / call.size();
  const std::int64_t longest = *std::max_element(sizes.begin(), sizes.end());
  const ScratchPool::Lease scratch =
      call.scratch(std::min(longest, most) * call.size() * static_cast<std::int64_t>(sizeof(T)));
  for (std::int64_t begin = 0; begin < longest; begin += most)
    exchange(begin, Slices(sizes, begin, most), scratch.as<T>());
}

template <class T>
bool over_limit(const Call& call, std::int64_t elements) {
  return elements > call.chunk(sizeof(T), 1);
}

template <class T>
void copy_elements(const T* from, T* to, std::int64_t count) {
  if (count > 0) std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(T));
}

// Starts the gather of `mine` into `all`; with everything over the limit it is complete on return. `slices` holds MPI's
// counts and must live until call.wait().
template <class T>
void post_gather(Call& call, std::span<const T> mine, std::span<T> all, std::span<const std::int64_t> sizes,
                 Slices& slices) {
  if (all.empty()) return;
  const auto rank = static_cast<std::size_t>(call.rank());
  if (!over_limit<T>(call, static_cast<std::int64_t>(all.size()))) {
    // MPI wants all ranks or none to gather in place.
    T* own = all.data() + slices.displacements[rank];
    if (mine.data() != own) copy_elements(mine.data(), own, slices.counts[rank]);
    call.post([&](MPI_Request* request) {
      return MPI_Iallgatherv(MPI_IN_PLACE, 0, mpi_type<T>(), all.data(), slices.counts.data(),
                             slices.displacements.data(), mpi_type<T>(), call.comm(), request);
    });
    return;
  }
  const std::vector<std::int64_t> offsets = offsets_of(sizes);
  for_each_round<T>(call, sizes, [&](std::int64_t begin, const Slices& round, T* scratch) {
    const std::int64_t from = std::min(begin, sizes[rank]);  // an exhausted part still has a valid address
    call.post([&](MPI_Request* request) {
      return MPI_Iallgatherv(mine.data() + from, round.counts[rank], mpi_type<T>(), scratch, round.counts.data(),
                             round.displacements.data(), mpi_type<T>(), call.comm(), request);
    });
    call.wait();
    for (std::size_t r = 0; r < sizes.size(); ++r)
      copy_elements(scratch + round.displacements[r], all.data() + offsets[r] + begin, round.counts[r]);
  });
}

}  // namespace fourfold
