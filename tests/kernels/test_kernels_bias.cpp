#include <gtest/gtest.h>

#include "comparison.hpp"
#include "device_array.hpp"
#include "kernels/bias.hpp"

namespace fourfold::kernels {
namespace {

using test::cast_to;
using test::DeviceArray;
using test::normal_numbers;

struct Shape {
  Index rows, width;
};
const std::vector<Shape> kShapes{{0, 5}, {1, 1}, {3, 7}, {33, 65}, {20, 1024}, {7, 1025}, {5, 2500}};

template <class T>
class Bias : public testing::Test {};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(Bias, Scalars);

TYPED_TEST(Bias, Forward) {
  using T = TypeParam;
  for (const auto& [rows, width] : kShapes) {
    const auto b = cast_to<T>(normal_numbers(width, 1)), y = cast_to<T>(normal_numbers(rows * width, 2));
    const DeviceArray<T> db(b), dy(y);
    bias_forward<T>(Space(), db.const_vector(), dy.matrix(rows, width));
    auto want = y;
    for (Index i = 0; i < rows * width; ++i) want[i] += b[i % width];
    EXPECT_EQ(dy.host(), want);
  }
}

// Bit for bit: rows in ascending order, then the old value once.
TYPED_TEST(Bias, BackwardSumsRowsInOrder) {
  using T = TypeParam;
  for (const auto& [rows, width] : kShapes) {
    const auto dy = cast_to<T>(normal_numbers(rows * width, 1)), old = cast_to<T>(normal_numbers(width, 2));
    const DeviceArray<T> dev(dy), overwritten(old), added(old);
    bias_backward<T>(Space(), dev.const_matrix(rows, width), overwritten.vector(), Write::overwrite);
    bias_backward<T>(Space(), dev.const_matrix(rows, width), added.vector(), Write::add);
    std::vector<T> sum(width), with_old(width);
    for (Index r = 0; r < rows; ++r) {
      for (Index j = 0; j < width; ++j) sum[j] += dy[r * width + j];
    }
    for (Index j = 0; j < width; ++j) with_old[j] = old[j] + sum[j];
    EXPECT_EQ(overwritten.host(), sum);
    EXPECT_EQ(added.host(), with_old);
  }
}

TEST(BiasGradient, MatchesDifferences) {
  const Index rows = 4, width = 3;
  const auto b = normal_numbers(width, 1), x = normal_numbers(rows * width, 2), dy = normal_numbers(rows * width, 3);
  const auto loss = [&](const std::vector<double>& at) {
    const DeviceArray<double> dev(at), y(x);
    bias_forward<double>(Space(), dev.const_vector(), y.matrix(rows, width));
    return test::inner_product(y.host(), dy);
  };
  const DeviceArray<double> dev(dy), db(width);
  bias_backward<double>(Space(), dev.const_matrix(rows, width), db.vector(), Write::overwrite);
  test::expect_close(db.host(), test::numeric_gradient(b, loss), 1e-10, "db");
}

}  // namespace
}  // namespace fourfold::kernels
