#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "device_array.hpp"
#include "kernels/dropout.hpp"
#include "kernels/philox_lanes.hpp"

namespace fourfold::kernels {
namespace {

using test::cast_to;
using test::DeviceArray;
using test::normal_numbers;

const RandomStream kStream{0x123456789abcdefu, 42};

template <class T>
std::vector<T> dropped(const std::vector<T>& x, Index rows, Index width, double p, const GlobalRows& at,
                       const RandomStream& stream = kStream) {
  const DeviceArray<T> in(x), out(in.size(), T(7));
  dropout_forward<T>(Space(), in.const_matrix(rows, width), stream, p, at, out.matrix(rows, width));
  return out.host();
}

template <class T>
class Dropout : public testing::Test {};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(Dropout, Scalars);

TYPED_TEST(Dropout, FollowsTheGlobalElement) {
  using T = TypeParam;
  const Index rows = 6, width = 11;
  const double p = 0.3;
  const GlobalRows at{2, 3, 5, 16, 4, 40};
  const auto x = cast_to<T>(normal_numbers(rows * width, 1));
  const auto y = dropped<T>(x, rows, width, p, at);
  for (Index r = 0; r < rows; ++r) {
    for (Index j = 0; j < width; ++j) {
      const Index element = ((2 + r / 3) * 16 + 5 + r % 3) * 40 + 4 + j;
      const bool keep = kStream.uniform(static_cast<std::uint64_t>(element)) >= p;
      const double expected = keep ? static_cast<double>(x[r * width + j]) / (1 - p) : 0.0;
      EXPECT_NEAR(y[r * width + j], expected, 4 * std::numeric_limits<T>::epsilon() * std::abs(expected));
    }
  }
}

// Any start and length, an index that leaves its lower half within the run, keys and steps with both halves.
TEST(Draws, HighWordsAreThoseOfTheSingleDraws) {
  for (const RandomStream& stream : {kStream, RandomStream{0xfedcba9876543210u, 0x1122334455667788u}}) {
    for (const std::uint64_t first : {0ull, 5ull, 0xfffffff0ull, 0xffffffffull, 0x123456789abcdef0ull}) {
      for (const Index n : {1, 7, 8, 9, 64, 83}) {
        std::vector<std::uint32_t> word(static_cast<std::size_t>(n + kDrawLanes), 7u);
        draw_high_words(stream, first, n, word.data());
        for (Index i = 0; i < n; ++i) {
          ASSERT_EQ(word[i], stream.bits(first + static_cast<std::uint64_t>(i)) >> 32) << first << " " << n << " " << i;
        }
      }
    }
  }
}

// p equal to one element's draw keeps it, the next larger p drops it: there the upper halves are equal.
TYPED_TEST(Dropout, DrawsEqualToPAreKept) {
  using T = TypeParam;
  const std::vector<T> ones(50, T(1));
  for (const Index element : {0, 8, 31, 49}) {
    const double p = kStream.uniform(static_cast<std::uint64_t>(element));
    EXPECT_NE(dropped<T>(ones, 1, 50, p, {0, 1, 0, 1, 0, 50})[element], T(0));
    EXPECT_EQ(dropped<T>(ones, 1, 50, p + 0x1.0p-53, {0, 1, 0, 1, 0, 50})[element], T(0));
  }
}

TYPED_TEST(Dropout, PartsPutTogetherEqualTheWhole) {
  using T = TypeParam;
  const Index samples = 4, sequence = 6, width = 10;
  const std::vector<T> ones(samples * sequence * width, T(1));
  const auto whole = dropped<T>(ones, samples * sequence, width, 0.5, {0, sequence, 0, sequence, 0, width});
  std::vector<T> parts(whole.size(), T(-1));
  for (const Index sample : {0, 1}) {                           // samples 0 and 1..3
    for (const Index position : {0, 4}) {                       // positions 0..3 and 4..5
      for (const Index column : {Index(0), Index(7), width}) {  // columns 0..6, 7..9 and none
        const Index count = sample == 0 ? 1 : 3, tokens = position == 0 ? 4 : 2;
        const Index cols = column == 0 ? 7 : width - column;
        const std::vector<T> x(count * tokens * cols, T(1));
        const auto y = dropped<T>(x, count * tokens, cols, 0.5, {sample, tokens, position, sequence, column, width});
        for (Index r = 0; r < count * tokens; ++r) {
          for (Index j = 0; j < cols; ++j) {
            const Index row = (sample + r / tokens) * sequence + position + r % tokens;
            parts[row * width + column + j] = y[r * cols + j];
          }
        }
      }
    }
  }
  EXPECT_EQ(parts, whole);
}

TYPED_TEST(Dropout, KeepsTheExpectedShareAndTheMean) {
  using T = TypeParam;
  const Index rows = 500, width = 400;
  const std::vector<T> ones(rows * width, T(1));
  for (const double p : {0.1, 0.5, 0.9}) {
    const auto y = dropped<T>(ones, rows, width, p, {0, rows, 0, rows, 0, width});
    double kept = 0, sum = 0;
    for (const T value : y) {
      kept += value != T(0);
      sum += value;
    }
    const double deviation = std::sqrt(p * (1 - p) / (rows * width));
    EXPECT_NEAR(kept / (rows * width), 1 - p, 4 * deviation);
    EXPECT_NEAR(sum / (rows * width), 1.0, 4 * deviation / (1 - p));
  }
}

TYPED_TEST(Dropout, StepsAndKeysDrawOtherMasks) {
  using T = TypeParam;
  const std::vector<T> ones(1000, T(1));
  const GlobalRows at{0, 10, 0, 10, 0, 100};
  const auto first = dropped<T>(ones, 10, 100, 0.5, at);
  const auto next_step = dropped<T>(ones, 10, 100, 0.5, at, {kStream.key, kStream.step + 1});
  const auto other_key = dropped<T>(ones, 10, 100, 0.5, at, {kStream.key + 1, kStream.step});
  EXPECT_EQ(first, dropped<T>(ones, 10, 100, 0.5, at));
  int same_step = 0, same_key = 0;
  for (std::size_t i = 0; i < ones.size(); ++i) {
    same_step += first[i] == next_step[i];
    same_key += first[i] == other_key[i];
  }
  EXPECT_NEAR(same_step, 500, 70);
  EXPECT_NEAR(same_key, 500, 70);
}

TYPED_TEST(Dropout, NoneIsACopyAndInPlaceWorks) {
  using T = TypeParam;
  const Index rows = 3, width = 37;
  const auto x = cast_to<T>(normal_numbers(rows * width, 2));
  const GlobalRows at{0, 3, 0, 3, 0, width};
  EXPECT_EQ(dropped<T>(x, rows, width, 0.0, at), x);
  const auto expected = dropped<T>(x, rows, width, 0.4, at);
  const DeviceArray<T> back(x);
  dropout_forward<T>(Space(), back.const_matrix(rows, width), kStream, 0.4, at, back.matrix(rows, width));
  EXPECT_EQ(back.host(), expected);
  dropout_forward<T>(Space(), back.const_matrix(rows, width), kStream, 0.0, at, back.matrix(rows, width));
  EXPECT_EQ(back.host(), expected);
  EXPECT_TRUE(dropped<T>({}, 0, width, 0.4, at).empty());
  EXPECT_TRUE(dropped<T>({}, 0, width, 0.4, {0, 0, 0, 3, 0, width}).empty());
}

}  // namespace
}  // namespace fourfold::kernels
