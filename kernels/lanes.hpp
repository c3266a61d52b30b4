// Reductions of a row in one fixed order that vectorises: element j goes to lane j % kLanes, then the lanes are folded
// in halves. The result depends on the values and the length alone, not on alignment, compiler flags or threads.
#pragma once

#include <limits>

#include "kernels/types.hpp"

namespace fourfold::kernels {

inline constexpr int kLanes = 32;

// Combines element(0) .. element(n - 1), each once and in order, starting from `identity` (also the result for n = 0).
// combine(a, b) must be associative up to rounding. The result of element(j) must not depend on the order of calls.
template <class T, class Combine, class Element>
KOKKOS_FORCEINLINE_FUNCTION T lane_reduce(Index n, T identity, Combine combine, Element element) {
  T lane[kLanes];
  for (int l = 0; l < kLanes; ++l) lane[l] = identity;
  Index j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    for (int l = 0; l < kLanes; ++l) lane[l] = combine(lane[l], element(j + l));
  }
  for (int l = 0; l < n - j; ++l) lane[l] = combine(lane[l], element(j + l));
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) lane[l] = combine(lane[l], lane[l + width]);
  }
  return lane[0];
}

template <class T, class Element>
KOKKOS_FORCEINLINE_FUNCTION T lane_sum(Index n, Element element) {
  return lane_reduce(
      n, T(0), [](T a, T b) { return a + b; }, element);
}

// -infinity for n = 0; a NaN among the elements gives NaN or is skipped.
template <class T, class Element>
KOKKOS_FORCEINLINE_FUNCTION T lane_max(Index n, Element element) {
  return lane_reduce(
      n, -std::numeric_limits<T>::infinity(), [](T a, T b) { return a > b ? a : b; }, element);
}

}  // namespace fourfold::kernels
