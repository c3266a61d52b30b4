#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "comparison.hpp"
#include "device_array.hpp"
#include "kernels/activation.hpp"

namespace fourfold::kernels {
namespace {

using test::cast_to;
using test::DeviceArray;
using test::expect_close;
using test::normal_numbers;

const std::vector<Index> kSizes{0, 1, 3, 7, 33, 1001};

double relu(double x) {
  return x > 0 ? x : 0;
}
double relu_slope(double x) {
  return x > 0 ? 1 : 0;
}
double gelu(double x) {
  return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
}
double gelu_slope(double x) {
  return 0.5 * std::erfc(-x / std::sqrt(2.0)) + x * std::exp(-0.5 * x * x) / std::sqrt(2 * std::acos(-1.0));
}
double tanh_argument(double x) {
  return std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x);
}
double gelu_tanh(double x) {
  return 0.5 * x * (1 + std::tanh(tanh_argument(x)));
}
double gelu_tanh_slope(double x) {
  const double t = std::tanh(tanh_argument(x));
  const double slope = std::sqrt(2 / std::acos(-1.0)) * (1 + 3 * 0.044715 * x * x);
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope;
}
double silu(double x) {
  return x / (1 + std::exp(-x));
}
double silu_slope(double x) {
  const double s = 1 / (1 + std::exp(-x));
  return s + x * s * (1 - s);
}

template <class T>
struct Activation {
  const char* name;
  void (*forward)(const Space&, Vector<const T>, Vector<T>);
  void (*backward)(const Space&, Vector<const T>, Vector<const T>, Vector<T>);
  double (*value)(double);
  double (*slope)(double);
};

template <class T>
std::vector<Activation<T>> activations() {
  return {{"relu", relu_forward<T>, relu_backward<T>, relu, relu_slope},
          {"gelu", gelu_forward<T>, gelu_backward<T>, gelu, gelu_slope},
          {"gelu_tanh", gelu_tanh_forward<T>, gelu_tanh_backward<T>, gelu_tanh, gelu_tanh_slope}};
}

// Relative to each element's own |x| (forward) and |dy| (backward).
template <class T>
constexpr double kTolerance = std::is_same_v<T, float> ? 5e-7 : 4e-15;

template <class T>
class Activations : public testing::Test {};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(Activations, Scalars);

TYPED_TEST(Activations, MatchPlainFunctions) {
  using T = TypeParam;
  for (const auto& act : activations<T>()) {
    for (const Index n : kSizes) {
      const auto x = cast_to<T>(normal_numbers(n, 1, 3.0)), dy = cast_to<T>(normal_numbers(n, 2));
      const DeviceArray<T> dev_x(x), dev_dy(dy), y(n, T(9)), dx(n, T(9));
      act.forward(Space(), dev_x.const_vector(), y.vector());
      act.backward(Space(), dev_x.const_vector(), dev_dy.const_vector(), dx.vector());
      const auto got_y = y.host(), got_dx = dx.host();
      for (Index i = 0; i < n; ++i) {
        const double at = x[i];
        ASSERT_NEAR(got_y[i], act.value(at), kTolerance<T> * std::abs(at)) << act.name << " at " << at;
        ASSERT_NEAR(got_dx[i], dy[i] * act.slope(at), 2 * kTolerance<T> * std::abs(dy[i])) << act.name << " at " << at;
      }
    }
  }
}

TEST(ActivationGradient, MatchesDifferences) {
  const Index n = 40;
  auto x = normal_numbers(n, 1, 2.0);
  for (double& value : x) value += value > 0 ? 0.01 : -0.01;  // relu has no derivative at 0
  const auto dy = normal_numbers(n, 2);
  for (const auto& act : activations<double>()) {
    const auto loss = [&](const std::vector<double>& at) {
      const DeviceArray<double> dev(at), y(n);
      act.forward(Space(), dev.const_vector(), y.vector());
      return test::inner_product(y.host(), dy);
    };
    const DeviceArray<double> dev_x(x), dev_dy(dy), dx(n);
    act.backward(Space(), dev_x.const_vector(), dev_dy.const_vector(), dx.vector());
    expect_close(dx.host(), test::numeric_gradient(x, loss), 1e-9, act.name);
  }
}

TYPED_TEST(Activations, LargeArgumentsAndNan) {
  using T = TypeParam;
  const T nan = std::numeric_limits<T>::quiet_NaN();
  for (const auto& act : activations<T>()) {
    const DeviceArray<T> x(std::vector<T>{T(1e4), T(-1e4), T(0), T(-0.0), nan}), dy(5, T(1)), y(5), dx(5);
    act.forward(Space(), x.const_vector(), y.vector());
    act.backward(Space(), x.const_vector(), dy.const_vector(), dx.vector());
    const auto value = y.host(), slope = dx.host();
    EXPECT_EQ(value[0], T(1e4)) << act.name;
    EXPECT_EQ(value[1], T(0)) << act.name;
    EXPECT_EQ(value[2], T(0)) << act.name;
    EXPECT_TRUE(std::isnan(value[4])) << act.name;
    EXPECT_EQ(slope[0], T(1)) << act.name;
    EXPECT_EQ(slope[1], T(0)) << act.name;
  }
  const DeviceArray<T> zero(1, T(-0.0)), y(1);
  relu_forward<T>(Space(), zero.const_vector(), y.vector());
  EXPECT_FALSE(std::signbit(y.host()[0]));
}

struct Shape {
  Index rows, width;
};
const std::vector<Shape> kShapes{{0, 4}, {1, 1}, {3, 5}, {17, 33}, {4, 256}};

TYPED_TEST(Activations, Swiglu) {
  using T = TypeParam;
  for (const auto& [rows, width] : kShapes) {
    const auto x = cast_to<T>(normal_numbers(rows * 2 * width, 1, 3.0)),
               dy = cast_to<T>(normal_numbers(rows * width, 2));
    const DeviceArray<T> dev_x(x), dev_dy(dy), y(rows * width, T(9)), dx(rows * 2 * width, T(9));
    swiglu_forward<T>(Space(), dev_x.const_matrix(rows, 2 * width), y.matrix(rows, width));
    swiglu_backward<T>(Space(), dev_x.const_matrix(rows, 2 * width), dev_dy.const_matrix(rows, width),
                       dx.matrix(rows, 2 * width));
    const auto got_y = y.host(), got_dx = dx.host();
    for (Index r = 0; r < rows; ++r) {
      for (Index j = 0; j < width; ++j) {
        const double gate = x[r * 2 * width + j], up = x[r * 2 * width + width + j], d = dy[r * width + j];
        const double size = std::abs(gate * up) + std::abs(gate * d) + std::abs(d * up);
        ASSERT_NEAR(got_y[r * width + j], silu(gate) * up, kTolerance<T> * size);
        ASSERT_NEAR(got_dx[r * 2 * width + j], d * up * silu_slope(gate), 2 * kTolerance<T> * size);
        ASSERT_NEAR(got_dx[r * 2 * width + width + j], d * silu(gate), kTolerance<T> * size);
      }
    }
  }
}

TEST(SwigluGradient, MatchesDifferences) {
  const Index rows = 3, width = 4;
  const auto x = normal_numbers(rows * 2 * width, 1, 2.0), dy = normal_numbers(rows * width, 2);
  const auto loss = [&](const std::vector<double>& at) {
    const DeviceArray<double> dev(at), y(rows * width);
    swiglu_forward<double>(Space(), dev.const_matrix(rows, 2 * width), y.matrix(rows, width));
    return test::inner_product(y.host(), dy);
  };
  const DeviceArray<double> dev_x(x), dev_dy(dy), dx(rows * 2 * width);
  swiglu_backward<double>(Space(), dev_x.const_matrix(rows, 2 * width), dev_dy.const_matrix(rows, width),
                          dx.matrix(rows, 2 * width));
  expect_close(dx.host(), test::numeric_gradient(x, loss), 1e-9, "dgate_up");
}

}  // namespace
}  // namespace fourfold::kernels
