#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "kernels/math.hpp"

namespace fourfold::kernels {
namespace {

// Largest relative error of `fast` against `exact` (in long double) over [low, high], in units of T's epsilon.
template <class T, class Fast, class Exact>
double worst_ulps(double low, double high, Fast fast, Exact exact) {
  std::mt19937_64 engine(7);
  std::uniform_real_distribution<double> draw(low, high);
  double worst = 0.0;
  for (int i = 0; i < 400000; ++i) {
    const T x = static_cast<T>(i % 8 == 0 ? draw(engine) * 1e-4 : draw(engine));
    const long double expected = exact(static_cast<long double>(x));
    const long double error = std::abs((static_cast<long double>(fast(x)) - expected) / expected);
    worst = std::max(worst, static_cast<double>(error / std::numeric_limits<T>::epsilon()));
  }
  return worst;
}

TEST(Math, ExpIsWithinTwoUlps) {
  const auto exact = [](long double x) { return std::exp(x); };
  EXPECT_LE(worst_ulps<float>(
                -87.5, 88.2, [](float x) { return fast_exp<float>(x); }, exact),
            2.0);
  EXPECT_LE(worst_ulps<double>(
                -708.0, 709.3, [](double x) { return fast_exp<double>(x); }, exact),
            2.0);
}

TEST(Math, LogisticIsAccurateInBothTails) {
  const auto value = [](auto x) { return logistic(x).value; };
  const auto complement = [](auto x) { return logistic(x).complement; };
  const auto exact = [](long double x) { return 1.0L / (1.0L + std::exp(-x)); };
  const auto exact_complement = [](long double x) { return 1.0L / (1.0L + std::exp(x)); };
  EXPECT_LE(worst_ulps<float>(-86.0, 86.0, value, exact), 4.0);
  EXPECT_LE(worst_ulps<float>(-86.0, 86.0, complement, exact_complement), 4.0);
  EXPECT_LE(worst_ulps<double>(-700.0, 700.0, value, exact) * std::numeric_limits<double>::epsilon(), 1e-14);
  EXPECT_LE(worst_ulps<double>(-700.0, 700.0, complement, exact_complement) * std::numeric_limits<double>::epsilon(),
            1e-14);
}

TEST(Math, NormalDistribution) {
  const auto value = [](auto x) { return normal(x).value; };
  const auto density = [](auto x) { return normal(x).density; };
  const auto exact = [](long double x) { return 0.5L * std::erfc(-x / std::sqrt(2.0L)); };
  const auto exact_density = [](long double x) { return std::exp(-0.5L * x * x) / std::sqrt(2.0L * std::acos(-1.0L)); };
  EXPECT_LE(worst_ulps<float>(-1.5, 12.0, value, exact), 4.0);
  EXPECT_LE(worst_ulps<double>(-6.0, 35.0, value, exact) * std::numeric_limits<double>::epsilon(), 1e-14);
  EXPECT_LE(worst_ulps<double>(-6.0, 6.0, density, exact_density) * std::numeric_limits<double>::epsilon(), 1e-14);
  // In the tail the rounding of x^2 counts x^2/2 times.
  EXPECT_LE(worst_ulps<float>(-6.0, -1.5, value, exact), 18.0 + 4.0);
  EXPECT_LE(worst_ulps<double>(-30.0, -6.0, value, exact), 450.0 + 4.0);
}

// Absolute, in units of |x| for the value: fp32 has no exp in it.
TEST(Math, GeluAndItsSlope) {
  const long double pi = std::acos(-1.0L);
  double worst_value = 0, worst_slope = 0, worst_tail = 0;
  for (int i = -400000; i <= 400000; ++i) {
    const float x = static_cast<float>(i) * 3e-5f;
    const long double at = x, below = 0.5L * std::erfc(-at / std::sqrt(2.0L));
    const long double slope = below + at * std::exp(-0.5L * at * at) / std::sqrt(2 * pi);
    const double error = static_cast<double>(std::abs(static_cast<long double>(gelu(x)) - at * below));
    if (i != 0) worst_value = std::max(worst_value, error / std::abs(static_cast<double>(x)));
    if (x > -4.0f && x < 0.0f) worst_tail = std::max(worst_tail, error / static_cast<double>(-at * below));
    worst_slope = std::max(worst_slope, static_cast<double>(std::abs(static_cast<long double>(gelu_slope(x)) - slope)));
  }
  EXPECT_LE(worst_value, 3e-7);
  EXPECT_LE(worst_slope, 3e-7);
  EXPECT_LE(worst_tail, 2e-5);
}

template <class T>
void ends() {
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  EXPECT_EQ(fast_exp<T>(T(0)), T(1));
  EXPECT_EQ(fast_exp<T>(-kInfinity), T(0));
  EXPECT_EQ(fast_exp<T>(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(fast_exp<T>(std::numeric_limits<T>::quiet_NaN())));
  EXPECT_EQ(logistic(-kInfinity).value, T(0));
  EXPECT_EQ(logistic(kInfinity).value, T(1));
  EXPECT_EQ(logistic(-kInfinity).complement, T(1));
  EXPECT_TRUE(std::isnan(logistic(std::numeric_limits<T>::quiet_NaN()).value));
  EXPECT_EQ(normal(-kInfinity).value, T(0));
  EXPECT_EQ(normal(kInfinity).value, T(1));
  EXPECT_EQ(normal(kInfinity).density, T(0));
  EXPECT_TRUE(std::isnan(normal(std::numeric_limits<T>::quiet_NaN()).value));
  EXPECT_EQ(gelu(T(1e30)), T(1e30));
  EXPECT_EQ(gelu(T(-1e30)), T(0));
  EXPECT_EQ(gelu_slope(T(1e30)), T(1));
  EXPECT_EQ(gelu_slope(T(-1e30)), T(0));
  EXPECT_TRUE(std::isnan(gelu(std::numeric_limits<T>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(gelu_slope(std::numeric_limits<T>::quiet_NaN())));
}

TEST(Math, EndsOfTheRange) {
  ends<float>();
  ends<double>();
}

}  // namespace
}  // namespace fourfold::kernels
