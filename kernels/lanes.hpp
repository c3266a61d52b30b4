// Reductions of a row in one fixed order that vectorises: element j goes to lane j % kLanes, then the lanes are folded
// in halves. The result depends on the values and the length alone, not on alignment, compiler flags or threads.
#pragma once

#include <limits>

#include "kernels/types.hpp"

namespace fourfold::kernels {

// For cheap elements, whose loop waits for its sums.
inline constexpr int kLanes = 32;
// For elements that take an exp or more: folding 32 lanes would cost as much as a row of 64.
inline constexpr int kFewLanes = 8;

// Combines element(0) .. element(n - 1), each called once, starting from `identity` (also the result for n = 0).
// combine(a, b) must be associative up to rounding. Elements may write, each its own place.
template <class T, int Lanes, class Combine, class Element>
KOKKOS_FORCEINLINE_FUNCTION T lane_reduce(Index n, T identity, Combine combine, Element element) {
  T lane[Lanes];
  for (int l = 0; l < Lanes; ++l) lane[l] = identity;
  Index j = 0;
  for (; j + Lanes <= n; j += Lanes) {
    for (int l = 0; l < Lanes; ++l) lane[l] = combine(lane[l], element(j + l));
  }
  for (int l = 0; l < n - j; ++l) lane[l] = combine(lane[l], element(j + l));
  for (int width = Lanes / 2; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) lane[l] = combine(lane[l], lane[l + width]);
  }
  return lane[0];
}

template <class T, int Lanes = kLanes, class Element>
KOKKOS_FORCEINLINE_FUNCTION T lane_sum(Index n, Element element) {
  return lane_reduce<T, Lanes>(
      n, T(0), [](T a, T b) { return a + b; }, element);
}

// -infinity for n = 0; a NaN among the elements gives NaN or is skipped.
template <class T, int Lanes = kLanes, class Element>
KOKKOS_FORCEINLINE_FUNCTION T lane_max(Index n, Element element) {
  constexpr T kLowest = -std::numeric_limits<T>::infinity();  // no call on a device
  return lane_reduce<T, Lanes>(
      n, kLowest, [](T a, T b) { return a > b ? a : b; }, element);
}

}  // namespace fourfold::kernels
