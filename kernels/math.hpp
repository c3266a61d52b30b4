// Elementary functions that loops can vectorise: no branch, no table, no call.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "kernels/types.hpp"

namespace fourfold::kernels {

namespace detail {

// Coefficients of a polynomial from x^0 upwards.
template <class T, std::size_t N>
struct Terms {
  T at[N];
};

// Neighbours joined: c0 + c1 x, c2 + c3 x, ... are the terms of a polynomial in x^2. No loop: the vectoriser must not
// meet an inner one.
template <class T, std::size_t N, std::size_t... I>
KOKKOS_FORCEINLINE_FUNCTION Terms<T, sizeof...(I)> join_neighbours(T x, const Terms<T, N>& c,
                                                                   std::index_sequence<I...>) {
  return {{(2 * I + 1 < N ? c.at[2 * I] + x * c.at[2 * I + 1 < N ? 2 * I + 1 : 0] : c.at[2 * I])...}};
}

// Estrin's scheme: as many multiplications as Horner's plus a few squares, but a chain of log2(N) instead of N. A core
// has room for few waiting operations, and what a chain holds up, other elements cannot use.
template <class T, std::size_t N>
KOKKOS_FORCEINLINE_FUNCTION T polynomial(T x, const Terms<T, N>& c) {
  if constexpr (N == 1) {
    return c.at[0];
  } else {
    return polynomial(x * x, join_neighbours(x, c, std::make_index_sequence<(N + 1) / 2>()));
  }
}

// What exp needs of its type. x = n ln 2 + r with |r| <= ln 2 / 2; ln 2 is kept in two parts, the first with so few
// bits that n times it is exact. Adding `magic` (1.5 x 2^mantissa + bias) rounds x / ln 2 to an integer and leaves
// n + bias in the low bits, which a shift turns into 2^n: 0 at `lowest`, infinity at `highest`.
template <class T>
struct ExpConstants;

template <>
struct ExpConstants<float> {
  using Bits = std::int32_t;
  static constexpr int mantissa = 23;
  static constexpr float magic = 12582912.0f + 127.0f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
  static constexpr float lowest = -88.0f, highest = 88.6f;
};

template <>
struct ExpConstants<double> {
  using Bits = std::int64_t;
  static constexpr int mantissa = 52;
  static constexpr double magic = 6755399441055744.0 + 1023.0, ln2_high = 6.93147180369123816490e-01,
                          ln2_low = 1.90821492927058770002e-10;
  static constexpr double lowest = -709.0, highest = 709.7;
};

// (exp(r) - 1 - r) / r^2 for |r| <= ln 2 / 2, interpolated at Chebyshev nodes: exp is off by 1.1e-8 (fp32), 1.8e-17
// (fp64).
KOKKOS_FORCEINLINE_FUNCTION float exp_rest(float r) {
  return polynomial(r, Terms<float, 5>{{0.5f, 1.6666576666e-1f, 4.1666554213e-2f, 8.3632328837e-3f, 1.3926250831e-3f}});
}
KOKKOS_FORCEINLINE_FUNCTION double exp_rest(double r) {
  return polynomial(r, Terms<double, 10>{{0.50000000000000010314, 0.1666666666666666746, 0.041666666666623820532,
                                          0.0083333333333300381973, 0.0013888888917367080562, 0.00019841269863171556026,
                                          0.000024801521057868205199, 2.7557268276905696187e-6,
                                          2.7620201591031548792e-7, 2.5100472505694996003e-8}});
}

}  // namespace detail

// exp(x) within 2 ulp (float) or 1e-15 relative (double) for x in [-87.6, 0] or [-708.7, 0]; 0 below, NaN for NaN. Not
// for x above 88 or 709.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION T fast_exp_below(T x) {
  using C = detail::ExpConstants<T>;
  x = x < C::lowest ? C::lowest : x;
  const T shifted = x * static_cast<T>(1.44269504088896340736) + C::magic;
  const T n = shifted - C::magic;
  const T r = (x - n * C::ln2_high) - n * C::ln2_low;
  const T y = 1 + (r + r * r * detail::exp_rest(r));
  return y * __builtin_bit_cast(T, __builtin_bit_cast(typename C::Bits, shifted) << C::mantissa);
}

// The same for every x: up to 88.3 or 709.4, infinity above.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION T fast_exp(T x) {
  using C = detail::ExpConstants<T>;
  return fast_exp_below(C::highest < x ? C::highest : x);
}

// s = 1 / (1 + exp(-x)) and its complement 1 - s, both accurate in both tails: 4 ulp (float), 1e-14 relative (double).
template <class T>
struct Logistic {
  T value;
  T complement;
};
template <class T>
KOKKOS_FORCEINLINE_FUNCTION Logistic<T> logistic(T x) {
  const T small = fast_exp_below(-std::fabs(x));
  const T near_one = T(1) / (T(1) + small);
  const T near_zero = small * near_one;
  return x < T(0) ? Logistic<T>{near_zero, near_one} : Logistic<T>{near_one, near_zero};
}

// y / (1 + exp(-x)).
template <class T>
KOKKOS_FORCEINLINE_FUNCTION T times_logistic(T y, T x) {
  return y / (T(1) + fast_exp(-x));
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

KOKKOS_FORCEINLINE_FUNCTION float normal_tail_polynomial(float q) {
  return polynomial(q, Terms<float, 11>{{5.589395664e-1f, -7.840394994e-2f, 9.488987808e-3f, 3.302538884e-2f,
                                         -4.521255758e-2f, 3.668048462e-2f, -2.128112246e-2f, 8.794637028e-3f,
                                         -2.185196666e-3f, -7.78389783e-5f, 2.690460562e-4f}});
}
KOKKOS_FORCEINLINE_FUNCTION double normal_tail_polynomial(double q) {
  return polynomial(
      q, Terms<double, 23>{
             {5.58939566763295707e-1,  -7.84039422729623947e-2, 9.48892848223042002e-3,  3.30251192426831567e-2,
              -4.52112376693357495e-2, 3.66835949243298733e-2,  -2.12909373669612645e-2, 8.7767105317901243e-3,
              -2.15626047824389349e-3, -2.42487848017877642e-5, 2.43829185790039065e-4,  -6.74312238895502572e-5,
              -1.40865731538200844e-5, 1.16782399977199565e-5,  8.4728628565023983e-8,   -1.70339250863891095e-6,
              1.36578739313288548e-7,  2.5908540893201612e-7,   -2.46129778193154604e-8, -4.1463163376390794e-8,
              -2.2357099397136925e-11, 5.13026717456095094e-9,  1.00149683251214055e-9}});
}

}  // namespace detail

template <class T>
KOKKOS_FORCEINLINE_FUNCTION Normal<T> normal(T x) {
  constexpr T kEnd = sizeof(T) == sizeof(float) ? T(15) : T(40);  // the tail is below the smallest number there
  T a = std::fabs(x);
  a = kEnd < a ? kEnd : a;
  const T exponential = fast_exp_below(T(-0.5) * a * a);
  const T slope = T(1) + T(1.2533141373155002512) * a;
  const T shifted = a + T(5);
  const T inverse = T(1) / (slope * shifted);
  const T q = (a - T(5)) * slope * inverse;
  const T tail = exponential * detail::normal_tail_polynomial(q) * (shifted * inverse);
  return {x < T(0) ? tail : T(1) - tail, T(0.39894228040143267794) * exponential};
}

// GELU x Phi(x) and its derivative Phi(x) + x phi(x), Phi and phi as above. fp64: from `normal`. fp32: without exp, the
// lower tail being p(a)^-4 / 2 and its counterpart in the derivative q(a) times that, a = |x|; coefficients by
// minimising the largest error of the tail on [0, 6] (relative to it and 1/100). Errors with rounding: 3e-7 |x| and
// 3e-7.
struct GeluTail {
  float value, slope;
};
KOKKOS_FORCEINLINE_FUNCTION GeluTail gelu_tail(float x) {
  constexpr float kEnd = 1e3f;  // p^4 is infinite there, the polynomials are not
  float a = std::fabs(x);
  a = kEnd < a ? kEnd : a;
  // What follows the 1 that both begin with comes last: one rounding of a number near 1.
  const float p =
      1.0f + a * detail::polynomial(a, detail::Terms<float, 12>{
                                           {1.994703245e-01f, 9.948791389e-02f, 2.617081916e-02f, 5.799783312e-03f,
                                            6.796187679e-04f, 1.153772422e-03f, -6.555915363e-04f, 3.774017031e-04f,
                                            -1.270420491e-04f, 2.887065101e-05f, -3.717762569e-06f, 2.306453837e-07f}});
  const float q = 1.0f + a * detail::polynomial(
                                 a, detail::Terms<float, 9>{{-7.978861049e-01f, -6.365957734e-01f, -1.091298447e-01f,
                                                             1.942241510e-02f, -1.846670760e-04f, -1.029226649e-03f,
                                                             3.080419070e-04f, -4.246205877e-05f, 2.393260723e-06f}});
  const float square = p * p;
  const float tail = 0.5f / (square * square);
  return {tail, tail * q};
}

KOKKOS_FORCEINLINE_FUNCTION float gelu(float x) {
  const float tail = gelu_tail(x).value;
  return x * (x < 0.0f ? tail : 1.0f - tail);
}
KOKKOS_FORCEINLINE_FUNCTION double gelu(double x) {
  return x * normal(x).value;
}
KOKKOS_FORCEINLINE_FUNCTION float gelu_slope(float x) {
  const float tail = gelu_tail(x).slope;
  return x < 0.0f ? tail : 1.0f - tail;
}
KOKKOS_FORCEINLINE_FUNCTION double gelu_slope(double x) {
  const Normal<double> p = normal(x);
  return p.value + x * p.density;
}

}  // namespace fourfold::kernels
