#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "comparison.hpp"
#include "device_array.hpp"
#include "kernels/vector.hpp"

namespace fourfold::kernels {
namespace {

using test::cast_to;
using test::DeviceArray;
using test::normal_numbers;

const std::vector<Index> kSizes{0, 1, 3, 31, 33, 4095, 4096, 4097, 300001};

template <class T>
class VectorKernels : public testing::Test {};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(VectorKernels, Scalars);

TYPED_TEST(VectorKernels, FillCopyAddScale) {
  using T = TypeParam;
  for (const Index n : kSizes) {
    const auto x = cast_to<T>(normal_numbers(n, 1)), y = cast_to<T>(normal_numbers(n, 2));
    const DeviceArray<T> dx(x), dy(y), dz(n, T(7));
    add<T>(Space(), dx.const_vector(), dy.vector());
    const auto sums = dy.host();
    for (Index i = 0; i < n; ++i) ASSERT_EQ(sums[i], y[i] + x[i]);
    copy<T>(Space(), dx.const_vector(), dz.vector());
    EXPECT_EQ(dz.host(), x);
    scale<T>(Space(), 0.375, dz.vector());
    const auto scaled = dz.host();
    for (Index i = 0; i < n; ++i) ASSERT_EQ(scaled[i], x[i] * T(0.375));
    fill<T>(Space(), T(2.5), dz.vector());
    EXPECT_EQ(dz.host(), std::vector<T>(n, T(2.5)));
  }
}

TYPED_TEST(VectorKernels, Sums) {
  using T = TypeParam;
  for (const Index n : kSizes) {
    const auto x = cast_to<T>(normal_numbers(n, 3));
    const DeviceArray<T> dx(x);
    long double want = 0, want_squares = 0, size = 0;
    double largest = 0;
    for (const T value : x) {
      want += value;
      want_squares += static_cast<long double>(value) * value;
      size += std::abs(static_cast<long double>(value));
      largest = std::max(largest, std::abs(static_cast<double>(value)));
    }
    EXPECT_NEAR(sum<T>(Space(), dx.const_vector()), static_cast<double>(want), static_cast<double>(size) * 1e-14) << n;
    EXPECT_NEAR(sum_squares<T>(Space(), dx.const_vector()), static_cast<double>(want_squares),
                static_cast<double>(want_squares) * 1e-14)
        << n;
    EXPECT_EQ(max_abs<T>(Space(), dx.const_vector()), largest);
  }
}

// The order is that of blocks of 4096 in sequence: the whole is the sum of the parts, bit for bit, for cuts at blocks.
TYPED_TEST(VectorKernels, SumsAddBlocksInSequence) {
  using T = TypeParam;
  const Index n = 70 * 4096 + 77;  // more blocks than one launch takes
  const DeviceArray<T> x(cast_to<T>(normal_numbers(n, 4)));
  double total = 0.0, total_squares = 0.0;
  for (Index begin = 0; begin < n; begin += 4096) {
    const Vector<const T> block(x.data() + begin, std::min<Index>(4096, n - begin));
    total += sum<T>(Space(), block);
    total_squares += sum_squares<T>(Space(), block);
  }
  EXPECT_EQ(sum<T>(Space(), x.const_vector()), total);
  EXPECT_EQ(sum_squares<T>(Space(), x.const_vector()), total_squares);
}

// fp32 values whose squares and sums need more than fp32.
TEST(VectorSums, AreInDouble) {
  const DeviceArray<float> x(100000, 1.0f + 0x1p-20f);
  const double value = 1.0 + 0x1p-20;
  EXPECT_NEAR(sum_squares<float>(Space(), x.const_vector()), 1e5 * value * value, 1e-8);
  EXPECT_NEAR(sum<float>(Space(), x.const_vector()), 1e5 * value, 1e-8);
  EXPECT_EQ(sum_squares<float>(Space(), DeviceArray<float>(3, 1e30f).const_vector()),
            3.0 * static_cast<double>(1e30f) * static_cast<double>(1e30f));
}

TYPED_TEST(VectorKernels, CountNonfinite) {
  using T = TypeParam;
  for (const Index n : kSizes) {
    auto x = cast_to<T>(normal_numbers(n, 5));
    if (n > 2) x[1] = std::numeric_limits<T>::max();
    EXPECT_EQ(count_nonfinite<T>(Space(), DeviceArray<T>(x).const_vector()), 0);
    Index bad = 0;
    for (Index i = 0; i < n; i += 37, ++bad) {
      x[i] = bad % 3 == 0   ? std::numeric_limits<T>::quiet_NaN()
             : bad % 3 == 1 ? std::numeric_limits<T>::infinity()
                            : -std::numeric_limits<T>::infinity();
    }
    EXPECT_EQ(count_nonfinite<T>(Space(), DeviceArray<T>(x).const_vector()), bad) << n;
  }
}

TYPED_TEST(VectorKernels, SnapRoundsTiesToEvenAndLeavesNoNegativeZero) {
  using T = TypeParam;
  const T unit = T(1) / 256;
  const std::vector<T> x{T(0.5) * unit,  T(1.5) * unit,  T(2.5) * unit, T(-0.5) * unit, T(-1.5) * unit, T(-2.5) * unit,
                         T(0.51) * unit, T(-0.4) * unit, T(-0.0),       T(0),           T(3),           T(-7.25)};
  const std::vector<T> want{T(0), 2 * unit, 2 * unit, T(0), -2 * unit, -2 * unit,
                            unit, T(0),     T(0),     T(0), T(3),      T(-7.25)};
  const DeviceArray<T> dx(x);
  snap<T>(Space(), 8, dx.vector());
  const auto got = dx.host();
  EXPECT_EQ(got, want);
  for (const T value : got) {
    if (value == T(0)) {
      EXPECT_FALSE(std::signbit(value));
    }
  }
  // The same element by element, where the loop is too short for vectors.
  for (std::size_t i = 0; i < x.size(); ++i) {
    const DeviceArray<T> one(std::vector<T>{x[i]});
    snap<T>(Space(), 8, one.vector());
    EXPECT_EQ(one.host()[0], want[i]);
    EXPECT_FALSE(want[i] == T(0) && std::signbit(one.host()[0]));
  }
}

TYPED_TEST(VectorKernels, CopyColumns) {
  using T = TypeParam;
  const Index rows = 5, from = 7, to = 9;
  const auto x = cast_to<T>(normal_numbers(rows * from, 6)), y = cast_to<T>(normal_numbers(rows * to, 7));
  for (const Index n : {0, 1, 4}) {
    const DeviceArray<T> dx(x), dy(y);
    copy_columns<T>(Space(), dx.const_matrix(rows, from), 2, n, dy.matrix(rows, to), 5);
    auto want = y;
    for (Index r = 0; r < rows; ++r) {
      for (Index j = 0; j < n; ++j) want[r * to + 5 + j] = x[r * from + 2 + j];
    }
    EXPECT_EQ(dy.host(), want);
  }
  const DeviceArray<T> empty(0);
  copy_columns<T>(Space(), empty.const_matrix(0, from), 2, 3, empty.matrix(0, to), 5);
}

}  // namespace
}  // namespace fourfold::kernels
