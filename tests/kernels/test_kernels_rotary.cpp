#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "device_array.hpp"
#include "kernels/rotary.hpp"

namespace fourfold::kernels {
namespace {

using test::cast_to;
using test::DeviceArray;
using test::normal_numbers;

struct Shape {
  Index rows, tokens, offset, heads, head_dim, first_col, width;
};

const std::vector<Shape> kShapes{{6, 3, 0, 2, 4, 0, 8},     {40, 20, 5, 3, 10, 7, 41}, {35, 35, 1000, 1, 128, 1, 130},
                                 {1, 1, 77, 4, 66, 3, 300}, {0, 0, 0, 2, 8, 0, 16},    {4, 2, 0, 0, 8, 0, 16}};

template <class T>
std::vector<T> turned(const std::vector<T>& x, const Shape& s, double theta, bool back = false) {
  const DeviceArray<T> device(x);
  const auto call = back ? rotary_backward<T> : rotary_forward<T>;
  call(Space(), s.heads, s.head_dim, s.first_col, {s.tokens, s.offset}, theta, device.matrix(s.rows, s.width));
  return device.host();
}

// By plain loops in fp64.
std::vector<double> plain(std::vector<double> x, const Shape& s, double theta) {
  for (Index r = 0; r < s.rows; ++r) {
    for (Index h = 0; h < s.heads; ++h) {
      for (Index i = 0; i < s.head_dim / 2; ++i) {
        const double angle = static_cast<double>(s.offset + r % s.tokens) * std::pow(theta, -2.0 * i / s.head_dim);
        double& low = x[r * s.width + s.first_col + h * s.head_dim + i];
        double& high = x[r * s.width + s.first_col + h * s.head_dim + i + s.head_dim / 2];
        const double a = low, b = high;
        low = a * std::cos(angle) - b * std::sin(angle);
        high = a * std::sin(angle) + b * std::cos(angle);
      }
    }
  }
  return x;
}

template <class T>
class Rotary : public testing::Test {};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(Rotary, Scalars);

TYPED_TEST(Rotary, MatchesPlainLoopsAndLeavesTheRestAlone) {
  using T = TypeParam;
  for (const Shape& s : kShapes) {
    for (const double theta : {10000.0, 500.0}) {
      const auto x = cast_to<T>(normal_numbers(s.rows * s.width, 3));
      const auto y = turned<T>(x, s, theta);
      const auto expected = plain({x.begin(), x.end()}, s, theta);
      for (std::size_t i = 0; i < x.size(); ++i) {
        EXPECT_NEAR(y[i], expected[i], 8 * std::numeric_limits<T>::epsilon());
        const Index column = static_cast<Index>(i) % s.width - s.first_col;
        if (column < 0 || column >= s.heads * s.head_dim) {
          EXPECT_EQ(y[i], x[i]);
        }
      }
    }
  }
}

TYPED_TEST(Rotary, ForwardThenBackwardIsTheIdentity) {
  using T = TypeParam;
  for (const Shape& s : kShapes) {
    const auto x = cast_to<T>(normal_numbers(s.rows * s.width, 4));
    const auto y = turned<T>(turned<T>(x, s, 10000.0), s, 10000.0, true);
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(y[i], x[i], 8 * std::numeric_limits<T>::epsilon());
  }
}

// <F x, y> = <x, F* y>
TEST(RotaryAdjoint, InnerProductsAgree) {
  for (const Shape& s : kShapes) {
    const auto x = normal_numbers(s.rows * s.width, 5), y = normal_numbers(s.rows * s.width, 6);
    const auto fx = turned<double>(x, s, 10000.0), fy = turned<double>(y, s, 10000.0, true);
    double left = 0, right = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      left += fx[i] * y[i];
      right += x[i] * fy[i];
    }
    EXPECT_NEAR(left, right, 1e-13 * static_cast<double>(x.size() + 1));
  }
}

// Rows with places of their own turn as each would alone.
TEST(RotaryPositions, PlacesOfTheirOwn) {
  const Index rows = 40, heads = 2, d = 6, width = heads * d;
  const auto x = normal_numbers(rows * width, 9);
  std::vector<std::int32_t> places;
  for (Index r = 0; r < rows; ++r) places.push_back(static_cast<std::int32_t>(r * 7 % 23));
  const DeviceArray<std::int32_t> at(places);
  for (const bool back : {false, true}) {
    const DeviceArray<double> all(x);
    const auto call = back ? rotary_backward<double> : rotary_forward<double>;
    call(Space(), heads, d, 0, {5, 3, at.const_vector().data()}, 100.0, all.matrix(rows, width));
    const std::vector<double> turned_rows = all.host();
    for (Index r = 0; r < rows; ++r) {
      const std::vector<double> row(x.begin() + r * width, x.begin() + (r + 1) * width);
      const auto alone = turned<double>(row, {1, 1, places[r], heads, d, 0, width}, 100.0, back);
      for (Index i = 0; i < width; ++i) EXPECT_EQ(turned_rows[r * width + i], alone[i]) << r;
    }
  }
}

// Scores depend on the distance alone, and a part of a sequence turns like the whole.
TEST(RotaryPositions, DistanceAndOffset) {
  const Index d = 8, tokens = 12;
  const auto q = normal_numbers(d, 7), k = normal_numbers(d, 8);
  std::vector<double> queries, keys;
  for (Index t = 0; t < tokens; ++t) {
    queries.insert(queries.end(), q.begin(), q.end());
    keys.insert(keys.end(), k.begin(), k.end());
  }
  const Shape whole{tokens, tokens, 0, 1, d, 0, d};
  const auto fq = turned<double>(queries, whole, 100.0), fk = turned<double>(keys, whole, 100.0);
  const auto score = [&](Index i, Index j) {
    double sum = 0;
    for (Index c = 0; c < d; ++c) sum += fq[i * d + c] * fk[j * d + c];
    return sum;
  };
  for (Index t = 0; t + 3 < tokens; ++t) EXPECT_NEAR(score(t + 3, t), score(3, 0), 1e-13);
  EXPECT_GT(std::abs(score(5, 0) - score(3, 0)), 1e-3);

  const Index from = 5;
  const auto part = turned<double>({queries.begin() + from * d, queries.end()},
                                   {tokens - from, tokens - from, from, 1, d, 0, d}, 100.0);
  EXPECT_EQ(part, std::vector<double>(fq.begin() + from * d, fq.end()));
}

}  // namespace
}  // namespace fourfold::kernels
