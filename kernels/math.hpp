// Elementary functions that loops can vectorise: no branch, no table, no call.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/types.hpp"

namespace fourfold::kernels {

namespace detail {

// What exp needs of its type. x = n ln 2 + r with |r| <= ln 2 / 2; ln 2 is kept in two parts, the first with so few
// bits that n times it is exact. Adding `magic` (1.5 x 2^mantissa + bias) rounds x / ln 2 to an integer and leaves
// n + bias in the low bits, which a shift turns into 2^n.
template <class T>
struct ExpConstants;

template <>
struct ExpConstants<float> {
  using Bits = std::int32_t;
  static constexpr int mantissa = 23, degree = 7;
  static constexpr float magic = 12582912.0f + 127.0f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
  static constexpr float lowest = -87.6f, highest = 88.3f;
};

template <>
struct ExpConstants<double> {
  using Bits = std::int64_t;
  static constexpr int mantissa = 52, degree = 13;
  static constexpr double magic = 6755399441055744.0 + 1023.0, ln2_high = 6.93147180369123816490e-01,
                          ln2_low = 1.90821492927058770002e-10;
  static constexpr double lowest = -708.7, highest = 709.4;
};

constexpr double inverse_factorial(int n) {
  return n < 2 ? 1.0 : inverse_factorial(n - 1) / n;
}

// sum over i in [I, N] of r^(i - I) / i!
template <class T, int I, int N>
KOKKOS_FORCEINLINE_FUNCTION constexpr T exp_series(T r) {
  if constexpr (I == N) {
    return static_cast<T>(inverse_factorial(I));
  } else {
    return static_cast<T>(inverse_factorial(I)) + r * exp_series<T, I + 1, N>(r);
  }
}

}  // namespace detail

// exp(x) within 2 ulp (float) or 1e-15 relative (double) for x in [-87.6, 88.3] or [-708.7, 709.4]; 0 below and
// infinity above, NaN for NaN.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION T fast_exp(T x) {
  using C = detail::ExpConstants<T>;
  const T shifted = x * static_cast<T>(1.44269504088896340736) + C::magic;
  const T n = shifted - C::magic;
  const T r = (x - n * C::ln2_high) - n * C::ln2_low;
  const T y = 1 + (r + r * r * detail::exp_series<T, 2, C::degree>(r));
  const T power = __builtin_bit_cast(T, __builtin_bit_cast(typename C::Bits, shifted) << C::mantissa);
  const T result = x < C::lowest ? T(0) : y * power;
  return x > C::highest ? std::numeric_limits<T>::infinity() : result;
}

}  // namespace fourfold::kernels
