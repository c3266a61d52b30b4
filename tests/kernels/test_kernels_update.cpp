#include <gtest/gtest.h>

#include <cmath>

#include "comparison.hpp"
#include "device_array.hpp"
#include "kernels/update.hpp"

namespace fourfold::kernels {
namespace {

using test::cast_to;
using test::DeviceArray;
using test::expect_close;
using test::normal_numbers;
using test::widened;

// Rounding of ten steps.
template <class T>
constexpr double kTolerance = std::is_same_v<T, float> ? 1e-6 : 1e-15;
constexpr int kSteps = 10;
const std::vector<Index> kSizes{0, 1, 5, 1003};

template <class T>
class Update : public testing::Test {};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(Update, Scalars);

TYPED_TEST(Update, Sgd) {
  using T = TypeParam;
  for (const Index n : kSizes) {
    const auto start = cast_to<T>(normal_numbers(n, 1));
    const DeviceArray<T> w(start);
    auto want = widened(start);
    for (int step = 0; step < kSteps; ++step) {
      const auto grad = cast_to<T>(normal_numbers(n, 10 + step));
      const DeviceArray<T> g(grad);
      sgd_update<T>(Space(), g.const_vector(), 0.75, 0.125, 0.0625, w.vector());
      for (Index i = 0; i < n; ++i) want[i] -= 0.125 * (0.75 * grad[i] + 0.0625 * want[i]);
    }
    expect_close(w.host(), want, kTolerance<T>, "w");
  }
}

TYPED_TEST(Update, Momentum) {
  using T = TypeParam;
  for (const Index n : kSizes) {
    const auto start = cast_to<T>(normal_numbers(n, 1));
    const DeviceArray<T> w(start), v(n);
    auto want = widened(start);
    std::vector<double> speed(n);
    for (int step = 0; step < kSteps; ++step) {
      const auto grad = cast_to<T>(normal_numbers(n, 10 + step));
      const DeviceArray<T> g(grad);
      momentum_update<T>(Space(), g.const_vector(), 0.75, 0.125, 0.5, 0.0625, w.vector(), v.vector());
      for (Index i = 0; i < n; ++i) {
        speed[i] = 0.5 * speed[i] + 0.75 * grad[i];
        want[i] -= 0.125 * (speed[i] + 0.0625 * want[i]);
      }
    }
    expect_close(w.host(), want, kTolerance<T>, "w");
    expect_close(v.host(), speed, kTolerance<T>, "v");
  }
}

TYPED_TEST(Update, AdamW) {
  using T = TypeParam;
  for (const Index n : kSizes) {
    const auto start = cast_to<T>(normal_numbers(n, 1));
    const DeviceArray<T> w(start), m(n), v(n);
    auto want = widened(start);
    std::vector<double> first(n), second(n);
    AdamW options;
    options.rate = 0.01;
    options.beta1 = 0.9;
    options.beta2 = 0.99;
    options.eps = 1e-3;
    options.decay = 0.1;
    for (int step = 1; step <= kSteps; ++step) {
      options.step = step;
      const auto grad = cast_to<T>(normal_numbers(n, 10 + step));
      const DeviceArray<T> g(grad);
      adamw_update<T>(Space(), g.const_vector(), 0.75, options, w.vector(), m.vector(), v.vector());
      for (Index i = 0; i < n; ++i) {
        const double gradient = 0.75 * grad[i];
        first[i] = 0.9 * first[i] + (1 - 0.9) * gradient;
        second[i] = 0.99 * second[i] + (1 - 0.99) * gradient * gradient;
        const double m_hat = first[i] / (1 - std::pow(0.9, step)), v_hat = second[i] / (1 - std::pow(0.99, step));
        want[i] -= 0.01 * (m_hat / (std::sqrt(v_hat) + 1e-3) + 0.1 * want[i]);
      }
    }
    expect_close(w.host(), want, kTolerance<T>, "w");
    expect_close(m.host(), first, kTolerance<T>, "m");
    expect_close(v.host(), second, kTolerance<T>, "v");
  }
}

// The first step moves every weight by the rate against the sign of its gradient, whatever its size.
TEST(AdamWUpdate, FirstStepIsTheSignOfTheGradient) {
  const DeviceArray<double> g(std::vector<double>{1e-3, -50.0, 2.0, 0.0}), w(4, 1.0), m(4), v(4);
  AdamW options;
  options.rate = 0.25;
  options.eps = 1e-12;
  adamw_update<double>(Space(), g.const_vector(), 1.0, options, w.vector(), m.vector(), v.vector());
  expect_close(w.host(), {0.75, 1.25, 0.75, 1.0}, 1e-8, "w");
}

// Numbers with few bits and a rate that is a power of two: no rounding, so the bits are known.
TEST(MomentumUpdate, DyadicIsExact) {
  const DeviceArray<double> g(std::vector<double>{3.0 / 4096, -5.0 / 4096}), w(std::vector<double>{0.5, -0.5}),
      v(2, 0.25);
  momentum_update<double>(Space(), g.const_vector(), 1.0, 0.5, 0.5, 0.0, w.vector(), v.vector());
  EXPECT_EQ(v.host(), (std::vector<double>{0.125 + 3.0 / 4096, 0.125 - 5.0 / 4096}));
  EXPECT_EQ(w.host(), (std::vector<double>{0.4375 - 1.5 / 4096, -0.5625 + 2.5 / 4096}));
}

}  // namespace
}  // namespace fourfold::kernels
