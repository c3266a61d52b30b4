#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "device_array.hpp"
#include "kernels/loss.hpp"
#include "kernels/math.hpp"

namespace fourfold::kernels {
namespace {

using test::cast_to;
using test::DeviceArray;
using test::normal_numbers;
using Ids = std::vector<std::int32_t>;

struct Part {
  Index first = 0, width = 0;
};

// Everything the cross entropy yields, from a vocabulary cut in parts and reduced by hand in ascending order.
template <class T>
struct CrossEntropy {
  std::vector<T> max, sum_exp, target_logit, dlogits;
  std::vector<double> loss;
};

template <class T>
CrossEntropy<T> cross_entropy(const std::vector<T>& logits, const Ids& targets, Index vocab,
                              const std::vector<Part>& parts, double scale, bool in_place = false) {
  const Space space;
  const Index rows = static_cast<Index>(targets.size());
  const DeviceArray<std::int32_t> ids(targets);
  CrossEntropy<T> result;
  result.max.assign(targets.size(), -std::numeric_limits<T>::infinity());
  result.sum_exp.assign(targets.size(), T(0));
  result.target_logit.assign(targets.size(), T(0));
  result.dlogits.assign(logits.size(), T(0));
  std::vector<DeviceArray<T>> z;
  for (const Part& part : parts) {
    std::vector<T> local;
    for (Index r = 0; r < rows; ++r) {
      for (Index j = 0; j < part.width; ++j) local.push_back(logits[r * vocab + part.first + j]);
    }
    z.emplace_back(local);
    const DeviceArray<T> max(rows, T(7));
    cross_entropy_max<T>(space, z.back().const_matrix(rows, part.width), max.vector());
    const std::vector<T> host = max.host();
    for (Index r = 0; r < rows; ++r) result.max[r] = std::max(result.max[r], host[r]);
  }
  const DeviceArray<T> max(result.max);
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const DeviceArray<T> sum(rows, T(7)), logit(rows, T(7));
    cross_entropy_sums<T>(space, z[p].const_matrix(rows, parts[p].width), max.const_vector(), ids.const_vector(),
                          parts[p].first, sum.vector(), logit.vector());
    const std::vector<T> host_sum = sum.host(), host_logit = logit.host();
    for (Index r = 0; r < rows; ++r) {
      result.sum_exp[r] += host_sum[r];
      result.target_logit[r] += host_logit[r];
    }
  }
  const DeviceArray<T> sum(result.sum_exp), logit(result.target_logit);
  const DeviceArray<double> loss(rows, 7.0);
  cross_entropy_forward<T>(space, max.const_vector(), sum.const_vector(), logit.const_vector(), ids.const_vector(),
                           loss.vector());
  result.loss = loss.host();
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const DeviceArray<T> other(z[p].size(), T(7));
    const DeviceArray<T>& dz = in_place ? z[p] : other;
    cross_entropy_backward<T>(space, z[p].const_matrix(rows, parts[p].width), max.const_vector(), sum.const_vector(),
                              ids.const_vector(), parts[p].first, scale, dz.matrix(rows, parts[p].width));
    const std::vector<T> host = dz.host();
    for (Index r = 0; r < rows; ++r) {
      for (Index j = 0; j < parts[p].width; ++j) {
        result.dlogits[r * vocab + parts[p].first + j] = host[r * parts[p].width + j];
      }
    }
  }
  return result;
}

// The loss of one row by plain loops in long double.
double plain_loss(const double* z, Index vocab, std::int32_t target) {
  if (target < 0) return 0.0;
  long double top = z[0], sum = 0;
  for (Index j = 0; j < vocab; ++j) top = std::max<long double>(top, z[j]);
  for (Index j = 0; j < vocab; ++j) sum += std::exp(z[j] - top);
  return static_cast<double>(std::log(sum) + top - z[target]);
}

Ids some_targets(Index rows, Index vocab) {
  Ids targets(static_cast<std::size_t>(rows));
  for (Index r = 0; r < rows; ++r) targets[r] = r % 4 == 3 ? -1 : static_cast<std::int32_t>((r * 37 + 5) % vocab);
  targets[0] = static_cast<std::int32_t>(vocab - 1);
  return targets;
}

TEST(Exp, IsAccurateAndSafeAtTheEnds) {
  double worst32 = 0, worst64 = 0;
  for (int i = 0; i <= 200000; ++i) {
    const float x32 = static_cast<float>(-87.3 + i * (87.3 + 88.3) / 200000);
    const double x64 = -708.0 + i * (708.0 + 709.3) / 200000;
    const double exact = std::exp(static_cast<double>(x32));
    worst32 = std::max(worst32, std::abs(fast_exp(x32) - exact) / exact);
    const long double wide = std::exp(static_cast<long double>(x64));
    worst64 = std::max(worst64, static_cast<double>(std::abs(fast_exp(x64) - wide) / wide));
  }
  EXPECT_LT(worst32, 2 * 0x1p-24);
  EXPECT_LT(worst64, 1e-15);
  EXPECT_EQ(fast_exp(0.0f), 1.0f);
  EXPECT_EQ(fast_exp(0.0), 1.0);
  EXPECT_EQ(fast_exp(-std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_EQ(fast_exp(-std::numeric_limits<double>::infinity()), 0.0);
  EXPECT_EQ(fast_exp(-1e30f), 0.0f);
  EXPECT_EQ(fast_exp(1e4), std::numeric_limits<double>::infinity());
  EXPECT_EQ(fast_exp(std::numeric_limits<float>::infinity()), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(fast_exp(std::numeric_limits<double>::quiet_NaN())));
}

TEST(CrossEntropy, ZeroLogitsGiveLnV) {
  for (const Index vocab : {Index(257), Index(50257)}) {
    const Ids targets{0, static_cast<std::int32_t>(vocab - 1), -1};
    const auto wide = cross_entropy<double>(std::vector<double>(3 * vocab), targets, vocab, {{0, vocab}}, 1.0);
    const auto narrow = cross_entropy<float>(std::vector<float>(3 * vocab), targets, vocab, {{0, vocab}}, 1.0);
    for (int r = 0; r < 2; ++r) {
      EXPECT_NEAR(wide.loss[r], std::log(static_cast<double>(vocab)), 1e-12);
      EXPECT_NEAR(narrow.loss[r], std::log(static_cast<double>(vocab)), 1e-12);  // sums of ones are exact
    }
    EXPECT_EQ(wide.loss[2], 0.0);
  }
}

TEST(CrossEntropy, MatchesPlainLoopsAndFiniteDifferences) {
  const double scale = 0.25;
  for (const Index vocab : {1, 2, 31, 33, 257}) {
    const Index rows = 5;
    std::vector<double> z = normal_numbers(rows * vocab, 3, 4.0);
    const Ids targets = some_targets(rows, vocab);
    const auto result = cross_entropy<double>(z, targets, vocab, {{0, vocab}}, scale);
    for (Index r = 0; r < rows; ++r) {
      EXPECT_NEAR(result.loss[r], plain_loss(&z[r * vocab], vocab, targets[r]), 1e-13);
      for (Index j = 0; j < vocab; j += 1 + vocab / 13) {
        double numeric = 0;
        const double h = 1e-3, weights[] = {8.0, -8.0, -1.0, 1.0}, steps[] = {h, -h, 2 * h, -2 * h};
        for (int i = 0; i < 4; ++i) {
          const double kept = z[r * vocab + j];
          z[r * vocab + j] = kept + steps[i];
          numeric += weights[i] * plain_loss(&z[r * vocab], vocab, targets[r]) / (12 * h);
          z[r * vocab + j] = kept;
        }
        EXPECT_NEAR(result.dlogits[r * vocab + j], scale * numeric, 1e-11);
      }
    }
  }
}

TEST(CrossEntropy, PartsOfTheVocabularyGiveTheWhole) {
  const Index rows = 9, vocab = 101;
  const std::vector<double> z = normal_numbers(rows * vocab, 5, 3.0);
  Ids targets = some_targets(rows, vocab);
  targets[1] = 39;  // the last column of a part and the first of the next
  targets[2] = 40;
  const auto whole = cross_entropy<double>(z, targets, vocab, {{0, vocab}}, 0.5);
  const auto parts = cross_entropy<double>(z, targets, vocab, {{0, 40}, {40, 0}, {40, 61}}, 0.5);
  for (Index r = 0; r < rows; ++r) {
    EXPECT_EQ(parts.max[r], whole.max[r]);
    EXPECT_EQ(parts.target_logit[r], whole.target_logit[r]);
    EXPECT_NEAR(parts.sum_exp[r], whole.sum_exp[r], 1e-15 * whole.sum_exp[r]);
    EXPECT_NEAR(parts.loss[r], whole.loss[r], 4e-15);
  }
  for (Index i = 0; i < rows * vocab; ++i) EXPECT_NEAR(parts.dlogits[i], whole.dlogits[i], 1e-15);
}

TEST(CrossEntropy, EmptyPartNoRowsAndPadding) {
  const Index rows = 3;
  const DeviceArray<double> max(rows, 7.0);
  const DeviceArray<double> nothing(Index(0));
  cross_entropy_max<double>(Space(), nothing.const_matrix(rows, 0), max.vector());
  for (const double value : max.host()) EXPECT_EQ(value, -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(cross_entropy<float>({}, {}, 5, {{0, 5}}, 1.0).loss.empty());

  // Padding columns at minus infinity take no probability and no gradient.
  const double out = -std::numeric_limits<double>::infinity();
  const auto padded = cross_entropy<double>({0.5, 1.5, out, out}, {1}, 4, {{0, 2}, {2, 2}}, 1.0);
  EXPECT_NEAR(padded.loss[0], std::log(1 + std::exp(-1.0)), 1e-15);
  EXPECT_EQ(padded.dlogits[2], 0.0);
  EXPECT_EQ(padded.dlogits[3], 0.0);
}

TEST(CrossEntropy, IgnoredRowsHaveNoGradientAndInPlaceIsTheSame) {
  const Index rows = 8, vocab = 70;
  const auto z = cast_to<float>(normal_numbers(rows * vocab, 7, 2.0));
  const Ids targets = some_targets(rows, vocab);
  const auto apart = cross_entropy<float>(z, targets, vocab, {{0, 33}, {33, 37}}, 0.125);
  const auto in_place = cross_entropy<float>(z, targets, vocab, {{0, 33}, {33, 37}}, 0.125, true);
  EXPECT_EQ(apart.dlogits, in_place.dlogits);
  for (Index r = 0; r < rows; ++r) {
    double sum = 0, largest = 0;
    for (Index j = 0; j < vocab; ++j) {
      sum += apart.dlogits[r * vocab + j];
      largest = std::max<double>(largest, std::abs(apart.dlogits[r * vocab + j]));
    }
    EXPECT_NEAR(sum, 0.0, 1e-7);
    EXPECT_EQ(largest == 0.0, targets[r] < 0);
    if (targets[r] < 0) {
      EXPECT_EQ(apart.loss[r], 0.0);
    }
  }
}

TEST(CrossEntropy, SinglePrecisionIsCloseToDouble) {
  const Index rows = 16, vocab = 1021;
  const auto z = cast_to<float>(normal_numbers(rows * vocab, 9, 5.0));
  const Ids targets = some_targets(rows, vocab);
  const auto narrow = cross_entropy<float>(z, targets, vocab, {{0, vocab}}, 1.0);
  const auto wide = cross_entropy<double>({z.begin(), z.end()}, targets, vocab, {{0, vocab}}, 1.0);
  for (Index r = 0; r < rows; ++r) EXPECT_NEAR(narrow.loss[r], wide.loss[r], 3e-7);
  for (Index i = 0; i < rows * vocab; ++i) EXPECT_NEAR(narrow.dlogits[i], wide.dlogits[i], 5e-7);
}

template <class T>
class SquaredError : public testing::Test {};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(SquaredError, Scalars);

TYPED_TEST(SquaredError, MatchesPlainLoops) {
  using T = TypeParam;
  const Index rows = 7, width = 45;
  const double scale = 0.5;
  const auto y = cast_to<T>(normal_numbers(rows * width, 11)), goal = cast_to<T>(normal_numbers(rows * width, 12));
  const DeviceArray<T> y_device(y), goal_device(goal), dy(rows * width, T(7));
  const DeviceArray<double> loss(rows, 7.0);
  squared_error_forward<T>(Space(), y_device.const_matrix(rows, width), goal_device.const_matrix(rows, width),
                           loss.vector());
  squared_error_backward<T>(Space(), y_device.const_matrix(rows, width), goal_device.const_matrix(rows, width), scale,
                            dy.matrix(rows, width));
  const auto host_loss = loss.host();
  const auto host_dy = dy.host();
  for (Index r = 0; r < rows; ++r) {
    double sum = 0;
    for (Index j = 0; j < width; ++j) {
      const double error = static_cast<double>(y[r * width + j]) - static_cast<double>(goal[r * width + j]);
      sum += 0.5 * error * error;
      EXPECT_NEAR(host_dy[r * width + j], scale * error, 4 * std::numeric_limits<T>::epsilon());
    }
    EXPECT_NEAR(host_loss[r], sum, 1e-13);
  }
}

TYPED_TEST(SquaredError, OneHotEqualsWrittenOutTargetsOnEveryPart) {
  using T = TypeParam;
  const Index rows = 6, vocab = 50;
  const Ids targets{0, 49, 20, -1, 33, 34};
  const auto y = cast_to<T>(normal_numbers(rows * vocab, 13));
  const DeviceArray<std::int32_t> ids(targets);
  std::vector<double> total(rows, 0.0);
  for (const Part part : {Part{0, 20}, Part{20, 0}, Part{20, 14}, Part{34, 16}}) {
    std::vector<T> local, goal;
    for (Index r = 0; r < rows; ++r) {
      for (Index j = part.first; j < part.first + part.width; ++j) {
        local.push_back(y[r * vocab + j]);
        goal.push_back(targets[r] == j ? T(1) : T(0));
      }
    }
    const DeviceArray<T> y_device(local), goal_device(goal);
    const DeviceArray<T> dy(y_device.size(), T(7)), expected_dy(y_device.size(), T(7));
    const DeviceArray<double> loss(rows, 7.0), expected(rows, 7.0);
    const auto y_matrix = y_device.const_matrix(rows, part.width),
               goal_matrix = goal_device.const_matrix(rows, part.width);
    squared_error_onehot_forward<T>(Space(), y_matrix, ids.const_vector(), part.first, loss.vector());
    squared_error_forward<T>(Space(), y_matrix, goal_matrix, expected.vector());
    squared_error_onehot_backward<T>(Space(), y_matrix, ids.const_vector(), part.first, 0.25,
                                     dy.matrix(rows, part.width));
    squared_error_backward<T>(Space(), y_matrix, goal_matrix, 0.25, expected_dy.matrix(rows, part.width));
    for (Index r = 0; r < rows; ++r) {
      EXPECT_EQ(loss.host()[r], targets[r] < 0 ? 0.0 : expected.host()[r]);
      for (Index j = 0; j < part.width; ++j) {
        const Index i = r * part.width + j;
        EXPECT_EQ(dy.host()[i], targets[r] < 0 ? T(0) : expected_dy.host()[i]);
      }
    }
  }
}

TEST(Targets, AreThoseNotBelowZero) {
  const DeviceArray<std::int32_t> ids(Ids{3, -1, 0, -7, 256});
  EXPECT_EQ(count_targets(Space(), ids.const_vector()), 3);
  EXPECT_EQ(count_targets(Space(), DeviceArray<std::int32_t>(Ids{}).const_vector()), 0);
}

}  // namespace
}  // namespace fourfold::kernels
