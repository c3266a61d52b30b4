#include "base/random.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <set>
#include <vector>

namespace fourfold {
namespace {

using kernels::Philox4;
using kernels::philox4x32;

void expect_words(const Philox4& got, std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
  EXPECT_EQ(got.word[0], a);
  EXPECT_EQ(got.word[1], b);
  EXPECT_EQ(got.word[2], c);
  EXPECT_EQ(got.word[3], d);
}

// The known answers for philox4x32, 10 rounds, of Random123's kat_vectors.
TEST(Philox, KnownAnswers) {
  expect_words(philox4x32({{0, 0, 0, 0}}, 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8);
  const std::uint32_t ones = 0xffffffff;
  expect_words(philox4x32({{ones, ones, ones, ones}}, ones, ones), 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd);
  expect_words(philox4x32({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0), 0xd16cfe09,
               0x94fdcceb, 0x5001e420, 0x24126ea1);
}

TEST(RandomStream, CounterAndKeyAreLaidOutLowWordFirst) {
  const RandomStream stream{0x299f31d0a4093822, 0x0370734413198a2e};
  expect_words(stream.draw(0x85a308d3243f6a88), 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1);
  EXPECT_EQ(stream.bits(0x85a308d3243f6a88), 0x94fdccebd16cfe09u);
}

TEST(RandomStream, SeedPurposeStepAndIndexAllMatter) {
  std::set<std::uint64_t> draws;
  for (const std::uint64_t seed : {1u, 2u}) {
    for (const char* purpose : {"", "init/a", "init/b", "data/order"}) {
      for (const std::uint64_t step : {0u, 1u}) {
        for (std::uint64_t index = 0; index < 4; ++index) draws.insert(random_stream(seed, purpose, step).bits(index));
      }
    }
  }
  EXPECT_EQ(draws.size(), 2u * 4 * 2 * 4);
  EXPECT_EQ(random_stream(7, "data/order", 3).bits(5), random_stream(7, "data/order", 3).bits(5));
}

// Checkpoints restart with these streams: a new mixing of seed and purpose breaks every run that is under way.
TEST(RandomStream, TheStreamOfAPurposeIsFrozen) {
  EXPECT_EQ(random_stream(1234, "data/order").key, RandomStream(1234, 0).bits(0xaba3261f32b9d596u));
}

TEST(RandomStream, UniformFillsItsInterval) {
  const RandomStream stream = random_stream(1, "test/uniform");
  const int n = 200000;
  double sum = 0, squares = 0, low = 1, high = 0;
  for (int i = 0; i < n; ++i) {
    const double u = stream.uniform(static_cast<std::uint64_t>(i));
    sum += u;
    squares += u * u;
    low = std::min(low, u);
    high = std::max(high, u);
  }
  EXPECT_GE(low, 0.0);
  EXPECT_LT(high, 1.0);
  EXPECT_LT(low, 1e-4);
  EXPECT_GT(high, 1 - 1e-4);
  EXPECT_NEAR(sum / n, 0.5, 4 * std::sqrt(1.0 / 12 / n));
  EXPECT_NEAR(squares / n, 1.0 / 3, 4 * std::sqrt(4.0 / 45 / n));
}

// Box-Muller on these streams' words, worked out apart from this code (cosine branch, radius from the first two words).
TEST(Normal, Values) {
  EXPECT_NEAR(normal(RandomStream{1234, 0}, 0), 0.5592489475752191, 1e-14);
  EXPECT_NEAR(normal(RandomStream{1234, 0}, 1), 0.4275866723340035, 1e-14);
  EXPECT_NEAR(normal(RandomStream{0x0123456789abcdef, 7}, std::uint64_t{1} << 40), 0.6741559933002486, 1e-14);
}

// Box-Muller by the library's functions, on draws whose indices need one word and two.
TEST(Normal, RunsAreWhatTheirDrawsAreOneByOne) {
  const RandomStream stream = random_stream(7, "test/normal", 3);
  for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{5}, (std::uint64_t{1} << 32) - 40}) {
    for (const std::size_t count : {0, 1, 31, 32, 33, 200}) {
      std::vector<double> run(count + 1, -99);
      fill_normal(stream, first, {run.data(), count});
      EXPECT_EQ(run.back(), -99);
      for (std::size_t i = 0; i < count; ++i) {
        EXPECT_EQ(run[i], normal(stream, first + i));
        const kernels::Philox4 x = stream.draw(first + i);
        const auto unit = [](std::uint32_t low, std::uint32_t high) {
          return static_cast<double>(((std::uint64_t{high} << 32) | low) >> 11) * 0x1.0p-53;
        };
        const double angle = 2.0 * std::numbers::pi * unit(x.word[2], x.word[3]);
        EXPECT_NEAR(run[i], std::sqrt(-2.0 * std::log(1.0 - unit(x.word[0], x.word[1]))) * std::cos(angle), 1e-14);
      }
    }
  }
}

// Moments of N(0, 1): 0, 1, 0, 3, each within four standard errors (variances 1, 2, 15, 96 over n).
TEST(Normal, Moments) {
  const RandomStream stream = random_stream(1234, "test/normal");
  const int n = 400000;
  double m1 = 0, m2 = 0, m3 = 0, m4 = 0;
  int beyond_two = 0;
  for (int i = 0; i < n; ++i) {
    const double x = normal(stream, static_cast<std::uint64_t>(i));
    ASSERT_TRUE(std::isfinite(x));
    m1 += x;
    m2 += x * x;
    m3 += x * x * x;
    m4 += x * x * x * x;
    beyond_two += std::abs(x) > 2 ? 1 : 0;
  }
  EXPECT_NEAR(m1 / n, 0, 4 * std::sqrt(1.0 / n));
  EXPECT_NEAR(m2 / n, 1, 4 * std::sqrt(2.0 / n));
  EXPECT_NEAR(m3 / n, 0, 4 * std::sqrt(15.0 / n));
  EXPECT_NEAR(m4 / n, 3, 4 * std::sqrt(96.0 / n));
  const double expected = std::erfc(std::sqrt(2.0));
  EXPECT_NEAR(static_cast<double>(beyond_two) / n, expected, 4 * std::sqrt(expected / n));
}

TEST(Normal, NeighboursAreUncorrelated) {
  const RandomStream stream = random_stream(99, "test/normal");
  const int n = 200000;
  double lag = 0, steps = 0;
  const RandomStream next = random_stream(99, "test/normal", 1);
  for (int i = 0; i < n; ++i) {
    const auto index = static_cast<std::uint64_t>(i);
    lag += normal(stream, index) * normal(stream, index + 1);
    steps += normal(stream, index) * normal(next, index);
  }
  EXPECT_NEAR(lag / n, 0, 4 * std::sqrt(1.0 / n));
  EXPECT_NEAR(steps / n, 0, 4 * std::sqrt(1.0 / n));
}

}  // namespace
}  // namespace fourfold
