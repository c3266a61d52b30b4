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

// s = 1 / (1 + exp(-x)) and its complement 1 - s, both accurate in both tails: 4 ulp (float), 1e-14 relative (double).
template <class T>
struct Logistic {
  T value;
  T complement;
};
template <class T>
KOKKOS_FORCEINLINE_FUNCTION Logistic<T> logistic(T x) {
  const T small = fast_exp(x < T(0) ? x : -x);
  const T near_one = T(1) / (T(1) + small);
  const T near_zero = small * near_one;
  return x < T(0) ? Logistic<T>{near_zero, near_one} : Logistic<T>{near_one, near_zero};
}

// The standard normal distribution: density exp(-x^2/2)/sqrt(2 pi), value (1 + erf(x/sqrt 2))/2; accuracy as
// above for x > -6 (beyond, the rounding of x^2 grows to x^2/2 ulp).
// Lower tail at a = |x|: exp(-a^2/2) P(q) / (1 + sqrt(pi/2) a) with q = (a - 5)/(a + 5); the form of Shepherd &
// Laframboise 1981 for erfc, in which P stays near 1/2. One division serves both quotients.
// The coefficients interpolate at Chebyshev nodes; their own error is 4e-9 (fp32) and 2e-17 (fp64).
template <class T>
struct Normal {
  T value;
  T density;
};

namespace detail {

// c0 + x (c1 + x (c2 + ...)). A recursion, not a loop: the vectoriser must not meet an inner loop.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION T polynomial(T, T c0) {
  return c0;
}
template <class T, class... C>
KOKKOS_FORCEINLINE_FUNCTION T polynomial(T x, T c0, C... rest) {
  return c0 + x * polynomial<T>(x, rest...);
}

KOKKOS_FORCEINLINE_FUNCTION float normal_tail_polynomial(float q) {
  return polynomial(q, 5.589395664e-1f, -7.840394994e-2f, 9.488987808e-3f, 3.302538884e-2f, -4.521255758e-2f,
                    3.668048462e-2f, -2.128112246e-2f, 8.794637028e-3f, -2.185196666e-3f, -7.78389783e-5f,
                    2.690460562e-4f);
}
KOKKOS_FORCEINLINE_FUNCTION double normal_tail_polynomial(double q) {
  return polynomial(q, 5.58939566763295707e-1, -7.84039422729623947e-2, 9.48892848223042002e-3, 3.30251192426831567e-2,
                    -4.52112376693357495e-2, 3.66835949243298733e-2, -2.12909373669612645e-2, 8.7767105317901243e-3,
                    -2.15626047824389349e-3, -2.42487848017877642e-5, 2.43829185790039065e-4, -6.74312238895502572e-5,
                    -1.40865731538200844e-5, 1.16782399977199565e-5, 8.4728628565023983e-8, -1.70339250863891095e-6,
                    1.36578739313288548e-7, 2.5908540893201612e-7, -2.46129778193154604e-8, -4.1463163376390794e-8,
                    -2.2357099397136925e-11, 5.13026717456095094e-9, 1.00149683251214055e-9);
}

}  // namespace detail

template <class T>
KOKKOS_FORCEINLINE_FUNCTION Normal<T> normal(T x) {
  constexpr T kEnd = sizeof(T) == sizeof(float) ? T(15) : T(40);  // the tail is below the smallest number there
  T a = x < T(0) ? -x : x;
  a = a > kEnd ? kEnd : a;
  const T exponential = fast_exp(T(-0.5) * a * a);
  const T slope = T(1) + T(1.2533141373155002512) * a;
  const T shifted = a + T(5);
  const T inverse = T(1) / (slope * shifted);
  const T q = (a - T(5)) * slope * inverse;
  const T tail = exponential * detail::normal_tail_polynomial(q) * (shifted * inverse);
  return {x < T(0) ? tail : T(1) - tail, T(0.39894228040143267794) * exponential};
}

}  // namespace fourfold::kernels
