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
  EXPECT_EQ(sample_token(kLogits, options, 0, 0), 1);
}

TEST(SampleToken, FrequenciesFollowTheSoftmax) {
  SamplingOptions options;
  options.temperature = 0.7;
  constexpr int kDraws = 40000;
  std::vector<int> counts(kLogits.size());
  for (int i = 0; i < kDraws; ++i) ++counts[static_cast<std::size_t>(sample_token(kLogits, options, 0, i))];
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
  for (int i = 0; i < 100; ++i) EXPECT_EQ(sample_token(kLogits, options, 0, i), 1);
  options.top_k = 3;
  std::vector<int> counts(kLogits.size());
  for (int i = 0; i < 1000; ++i) ++counts[static_cast<std::size_t>(sample_token(kLogits, options, 0, i))];
  EXPECT_EQ(counts[0] + counts[2], 0);
  EXPECT_GT(counts[1], 0);
  EXPECT_GT(counts[3], 0);
  EXPECT_GT(counts[4], 0);
}

// The probabilities are 0.35, 0.35, 0.21 (id 4) and less.
TEST(SampleToken, TopPKeepsTheFewestThatReachIt) {
  const auto chosen = [](double top_p, std::int64_t top_k) {
    SamplingOptions options;
    options.top_p = top_p;
    options.top_k = top_k;
    std::vector<int> counts(kLogits.size());
    for (int i = 0; i < 2000; ++i) ++counts[static_cast<std::size_t>(sample_token(kLogits, options, 0, i))];
    std::vector<int> ids;
    for (int id = 0; id < static_cast<int>(counts.size()); ++id) {
      if (counts[static_cast<std::size_t>(id)] > 0) ids.push_back(id);
    }
    return ids;
  };
  EXPECT_EQ(chosen(1e-9, 0), (std::vector<int>{1}));
  EXPECT_EQ(chosen(0.3, 0), (std::vector<int>{1}));
  EXPECT_EQ(chosen(0.5, 0), (std::vector<int>{1, 3}));
  EXPECT_EQ(chosen(0.8, 0), (std::vector<int>{1, 3, 4}));
  EXPECT_EQ(chosen(0.98, 0), (std::vector<int>{0, 1, 3, 4}));
  EXPECT_EQ(chosen(1.0, 0).size(), 5u);
  EXPECT_EQ(chosen(0.6, 2), (std::vector<int>{1, 3}));  // 0.5 of the two is not enough
  EXPECT_EQ(chosen(0.5, 2), (std::vector<int>{1}));     // it is
}

TEST(SampleToken, AFunctionOfSeedPromptAndIndex) {
  SamplingOptions a, b;
  b.seed = a.seed + 1;
  int differ = 0, prompts = 0;
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(sample_token(kLogits, a, 0, i), sample_token(kLogits, a, 0, i));
    differ += sample_token(kLogits, a, 0, i) != sample_token(kLogits, b, 0, i);
    prompts += sample_token(kLogits, a, 0, i) != sample_token(kLogits, a, 1, i);
  }
  EXPECT_GT(differ, 50);
  EXPECT_GT(prompts, 50);
}

}  // namespace
}  // namespace fourfold
