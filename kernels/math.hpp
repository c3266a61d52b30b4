// Branch-free exponential, logistic and normal distribution functions for fp32 and fp64, written so that the compiler
// vectorises loops that call them (the C library's versions are calls, which stop it).
//
// Accuracy, held by tests/kernels/test_math.cpp against the C library: fast_exp 2 ulp where the result is a normal
// number; the others 4 ulp in fp32 and 1e-14 relative in fp64 (the lower tail of the normal distribution to |x| = 6).
// The polynomials interpolate at Chebyshev nodes; their own error is below a quarter ulp.
#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>
#include <cstring>

namespace fourfold::kernels {

namespace detail {

template <class To, class From>
KOKKOS_FORCEINLINE_FUNCTION To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To bits;
  memcpy(&bits, &value, sizeof(To));
  return bits;
}

// c0 + x (c1 + x (c2 + ...)). A recursion, not a loop: the vectoriser must not meet an inner loop.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION T polynomial(T, T c0) {
  return c0;
}
template <class T, class... C>
KOKKOS_FORCEINLINE_FUNCTION T polynomial(T x, T c0, C... rest) {
  return c0 + x * polynomial<T>(x, rest...);
}

}  // namespace detail

// exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln(2)/2. Beyond the range: 0 and infinity; subnormal results lose
// bits as they must; NaN stays NaN. Adding 1.5 2^mantissa rounds to an integer and leaves it in the low bits; 2^n is
// applied in two factors, so that neither leaves the range of exponents.
KOKKOS_FORCEINLINE_FUNCTION float fast_exp(float x) {
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  constexpr float kRound = 0x1.8p23f;
  const float rounded = x * 1.44269504088896341f + kRound;
  const float n = rounded - kRound;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  const float p = detail::polynomial(r, 5.0e-1f, 1.666657699e-1f, 4.166655462e-2f, 8.363179053e-3f, 1.392618359e-3f);
  const std::uint32_t biased = detail::bits_as<std::uint32_t>(rounded) - detail::bits_as<std::uint32_t>(kRound) + 256u;
  const std::uint32_t half = biased >> 1;
  const float low = detail::bits_as<float>((half - 1u) << 23);
  const float high = detail::bits_as<float>((biased - half - 1u) << 23);
  return (1.0f + (r + r * r * p)) * low * high;
}
KOKKOS_FORCEINLINE_FUNCTION double fast_exp(double x) {
  x = x < -746.0 ? -746.0 : x;
  x = x > 710.0 ? 710.0 : x;
  constexpr double kRound = 0x1.8p52;
  const double rounded = x * 1.44269504088896340736 + kRound;
  const double n = rounded - kRound;
  const double r = (x - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
  const double p =
      detail::polynomial(r, 5.00000000000000102e-1, 1.66666666666666675e-1, 4.16666666666241279e-2,
                         8.33333333333006183e-3, 1.38888889172137169e-3, 1.98412698630536169e-4, 2.48015212959543751e-5,
                         2.75572684599970648e-6, 2.76200884454097482e-7, 2.51003854955103191e-8);
  const std::uint64_t biased =
      detail::bits_as<std::uint64_t>(rounded) - detail::bits_as<std::uint64_t>(kRound) + std::uint64_t{2048};
  const std::uint64_t half = biased >> 1;
  const double low = detail::bits_as<double>((half - 1u) << 52);
  const double high = detail::bits_as<double>((biased - half - 1u) << 52);
  return (1.0 + (r + r * r * p)) * low * high;
}

// s = 1 / (1 + exp(-x)) and its complement 1 - s, both accurate in both tails.
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

// The standard normal distribution: density exp(-x^2/2)/sqrt(2 pi), value (1 + erf(x/sqrt 2))/2.
// Lower tail at a = |x|: exp(-a^2/2) P(q) / (1 + sqrt(pi/2) a) with q = (a - 5)/(a + 5); the form of Shepherd &
// Laframboise 1981 for erfc, in which P stays near 1/2. One division serves both quotients.
template <class T>
struct Normal {
  T value;
  T density;
};

namespace detail {

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
