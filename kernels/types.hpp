// Names for numbers, views and index types, once. Kernels are labelled free functions on unmanaged row-major views:
// first the execution space, then const inputs, then outputs. No MPI, no deck, no allocation inside (a family that
// needs scratch asks for it). Callers name the scalar: `gelu_forward<T>(space, x, y)`.
//
// Shapes: R rows (tokens), D width, V vocabulary, H heads, K KV heads, d head size. Row counts may be zero.
#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>
#include <type_traits>

#include "kernels/bf16.hpp"

namespace fourfold::kernels {

using Index = std::int64_t;
using Space = Kokkos::DefaultExecutionSpace;

template <class T>
using Vector = Kokkos::View<T*, Kokkos::LayoutRight, Space::memory_space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
template <class T>
using Matrix = Kokkos::View<T**, Kokkos::LayoutRight, Space::memory_space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

// Statistics, sums and losses are kept in this type whatever the compute type: fp64 for fp64, fp32 for fp32 and bf16.
template <class T>
struct Accumulate {
  using type = T;
};
template <>
struct Accumulate<bf16> {
  using type = float;
};
template <class T>
using Acc = typename Accumulate<T>::type;
// Whether numbers are stored as they are computed with: no rounding between the two.
template <class T>
inline constexpr bool kStoredAsComputed = std::is_same_v<T, Acc<T>>;

using Range1 = Kokkos::RangePolicy<Space, Kokkos::IndexType<Index>>;

// Whether an output is written or added to.
enum class Write { overwrite, add };

}  // namespace fourfold::kernels
