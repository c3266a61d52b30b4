#include "infer/sample.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace fourfold {
namespace {

const std::vector<double> kLogits = {0.1, 2.0, -1.0, 2.0, 1.5};

TEST(SampleToken, GreedyTakesTheLowerOfEqualIds) {
  SamplingOptions options;
  options.temperature = 0;
  EXPECT_EQ(sample_token(kLogits, options, 0), 1);
}

TEST(SampleToken, FrequenciesFollowTheSoftmax) {
  SamplingOptions options;
  options.temperature = 0.7;
  constexpr int kDraws = 40000;
  std::vector<int> counts(kLogits.size());
  for (int i = 0; i < kDraws; ++i) ++counts[static_cast<std::size_t>(sample_token(kLogits, options, i))];
  double total = 0;
  for (const double z : kLogits) total += std::exp(z / 0.7);
  for (std::size_t i = 0; i < kLogits.size(); ++i) {
    const double p = std::exp(kLogits[i] / 0.7) / total;
    EXPECT_NEAR(counts[i], kDraws * p, 5 * std::sqrt(kDraws * p * (1 - p))) << i;
  }
}

TEST(SampleToken, TopKTiesGoToTheLowerId) {
  SamplingOptions options;
  options.top_k = 1;
  for (int i = 0; i < 100; ++i) EXPECT_EQ(sample_token(kLogits, options, i), 1);
  options.top_k = 3;
  std::vector<int> counts(kLogits.size());
  for (int i = 0; i < 1000; ++i) ++counts[static_cast<std::size_t>(sample_token(kLogits, options, i))];
  EXPECT_EQ(counts[0] + counts[2], 0);
  EXPECT_GT(counts[1], 0);
  EXPECT_GT(counts[3], 0);
  EXPECT_GT(counts[4], 0);
}

TEST(SampleToken, AFunctionOfSeedAndIndex) {
  SamplingOptions a, b;
  b.seed = a.seed + 1;
  int differ = 0;
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(sample_token(kLogits, a, i), sample_token(kLogits, a, i));
    differ += sample_token(kLogits, a, i) != sample_token(kLogits, b, i);
  }
  EXPECT_GT(differ, 50);
}

}  // namespace
}  // namespace fourfold
