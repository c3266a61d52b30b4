#include "data/sample_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <unordered_set>

namespace fourfold {
namespace {

std::vector<std::int64_t> epoch_of(const SampleOrder& order, std::int64_t epoch) {
  std::vector<std::int64_t> list;
  for (std::int64_t i = 0; i < order.samples(); ++i) list.push_back(order.at(epoch * order.samples() + i));
  return list;
}

TEST(SampleOrder, EveryEpochIsAPermutationAndDiffersFromTheLast) {
  for (std::int64_t n = 1; n <= 2000; ++n) {
    const SampleOrder order(1234, n);
    std::vector<std::vector<std::int64_t>> epochs;
    for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
      epochs.push_back(epoch_of(order, epoch));
      std::vector<char> seen(static_cast<std::size_t>(n), 0);
      for (const std::int64_t id : epochs.back()) {
        ASSERT_TRUE(id >= 0 && id < n) << "n " << n;
        ASSERT_EQ(seen[static_cast<std::size_t>(id)]++, 0) << "n " << n << " epoch " << epoch << " id " << id;
      }
    }
    if (n >= 10) {
      EXPECT_NE(epochs[0], epochs[1]) << "n " << n;
      EXPECT_FALSE(std::is_sorted(epochs[0].begin(), epochs[0].end())) << "n " << n;
    }
  }
}

TEST(SampleOrder, LargeSetsNeverRepeatAnId) {
  for (const std::int64_t n :
       {std::int64_t{1'000'003}, std::int64_t{1} << 31, (std::int64_t{1} << 40) + 1, (std::int64_t{1} << 62)}) {
    const SampleOrder order(7, n);
    std::unordered_set<std::int64_t> seen;
    double mean = 0;
    const std::int64_t count = 20000, stride = n / count;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t id = order.at(i * stride);
      ASSERT_TRUE(id >= 0 && id < n);
      ASSERT_TRUE(seen.insert(id).second) << n;
      mean += static_cast<double>(id) / static_cast<double>(n) / static_cast<double>(count);
    }
    EXPECT_NEAR(mean, 0.5, 5 * 0.2887 / std::sqrt(20000.0));  // five standard errors
  }
}

TEST(SampleOrder, SmallPermutationsAreAboutEquallyLikely) {
  // n = 4: 24 orders, 24,000 seeds; chi squared with 23 degrees of freedom is below 60 but once in 30,000.
  std::map<std::vector<std::int64_t>, int> counts;
  for (std::uint64_t seed = 0; seed < 24000; ++seed) ++counts[epoch_of(SampleOrder(seed, 4), 0)];
  ASSERT_EQ(counts.size(), 24u);
  double chi = 0;
  for (const auto& [order, count] : counts) chi += (count - 1000.0) * (count - 1000.0) / 1000.0;
  EXPECT_LT(chi, 60.0);
}

TEST(SampleOrder, NeighboursAndEpochsAreNotCorrelated) {
  const std::int64_t n = 10007;
  const SampleOrder order(1234, n);
  const auto correlation = [&](const std::vector<std::int64_t>& a, const std::vector<std::int64_t>& b) {
    const double mean = static_cast<double>(n - 1) / 2, variance = static_cast<double>(n * n - 1) / 12;
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      sum += (static_cast<double>(a[i]) - mean) * (static_cast<double>(b[i]) - mean);
    }
    return sum / variance / static_cast<double>(n);
  };
  const std::vector<std::int64_t> first = epoch_of(order, 0), second = epoch_of(order, 1);
  std::vector<std::int64_t> next(first.begin() + 1, first.end()), natural(static_cast<std::size_t>(n));
  next.push_back(first.front());
  std::iota(natural.begin(), natural.end(), 0);
  const double limit = 5 / std::sqrt(static_cast<double>(n));
  EXPECT_LT(std::abs(correlation(first, second)), limit);
  EXPECT_LT(std::abs(correlation(first, next)), limit);
  EXPECT_LT(std::abs(correlation(first, natural)), limit);
}

TEST(SampleOrder, SeedsDiffer) {
  EXPECT_NE(epoch_of(SampleOrder(1, 407), 0), epoch_of(SampleOrder(2, 407), 0));
  EXPECT_EQ(epoch_of(SampleOrder(1, 407), 3), epoch_of(SampleOrder(1, 407), 3));
}

}  // namespace
}  // namespace fourfold
