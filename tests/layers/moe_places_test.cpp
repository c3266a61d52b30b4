// Which expert changes places with which: Piper's rule against all swaps, on Zipf and random loads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "layers/moe/places.hpp"

namespace fourfold {
namespace {

using Loads = std::vector<double>;

// Whole numbers, as counts of pairs are.
Loads zipf(int experts, double exponent) {
  Loads loads;
  for (int e = 0; e < experts; ++e) loads.push_back(std::round(1e6 * std::pow(e + 1, -exponent)));
  return loads;
}

// The largest load of a rank over the mean, made anew from the map.
double imbalance(const ExpertPlaces& places, const Loads& loads) {
  double largest = 0;
  for (int rank = 0; rank < places.ranks(); ++rank) {
    double sum = 0;
    const Range held = places.of_rank(rank);
    for (Index place = held.begin; place < held.end; ++place)
      sum += loads[static_cast<std::size_t>(places.expert_at(place))];
    largest = std::max(largest, sum);
  }
  return largest * places.ranks() / std::accumulate(loads.begin(), loads.end(), 0.0);
}

// The least that one swap of any two experts reaches, or none.
double best_neighbour(const ExpertPlaces& places, const Loads& loads) {
  double best = imbalance(places, loads);
  for (Index a = 0; a < places.experts(); ++a) {
    for (Index b = a + 1; b < places.experts(); ++b) {
      ExpertPlaces other = places;
      other.swap(a, b);
      best = std::min(best, imbalance(other, loads));
    }
  }
  return best;
}

// Each swap is the best there is, and the last one leaves nothing better.
double expect_steepest_descent(int experts, int ranks, const Loads& loads) {
  ExpertPlaces places(experts, ranks);
  const ExpertPlaces start = places;
  const auto swaps = balance_by_swaps(places, loads, 1.0, 1000);
  ExpertPlaces replay = start;
  for (const auto& [a, b] : swaps) {
    EXPECT_NE(replay.rank_of(a), replay.rank_of(b));
    const double best = best_neighbour(replay, loads);
    replay.swap(a, b);
    EXPECT_NEAR(imbalance(replay, loads), best, 1e-12 * best);
  }
  EXPECT_TRUE(replay == places);
  EXPECT_NEAR(imbalance(places, loads), best_neighbour(places, loads), 1e-12);
  EXPECT_NEAR(rank_imbalance(places, loads), imbalance(places, loads), 1e-12);
  EXPECT_LE(imbalance(places, loads), imbalance(start, loads));
  return imbalance(places, loads);
}

// No placement of 4 experts a rank is better than expert 0 with the three lightest: 1.42.
TEST(MoePlaces, ZipfReachesTheOptimum) {
  const Loads loads = zipf(16, 1);
  const double sum = std::accumulate(loads.begin(), loads.end(), 0.0);
  const double optimum = 4 * (loads[0] + loads[13] + loads[14] + loads[15]) / sum;
  EXPECT_GE(optimum, 1.42);
  EXPECT_LT(optimum, 1.4206);
  EXPECT_NEAR(expect_steepest_descent(16, 4, loads), optimum, 1e-12);
  EXPECT_LT(expect_steepest_descent(16, 4, zipf(16, 0.5)), 1.15);
}

TEST(MoePlaces, RandomLoadsAndSizes) {
  std::mt19937_64 engine(7);
  for (int round = 0; round < 60; ++round) {
    const int ranks = 1 + static_cast<int>(engine() % 6);
    const int experts = ranks + static_cast<int>(engine() % 15);
    Loads loads;
    for (int e = 0; e < experts; ++e) loads.push_back(static_cast<double>(engine() % 100));
    loads[0] += 1;
    expect_steepest_descent(experts, ranks, loads);
  }
}

TEST(MoePlaces, StopsAtTauAndBudget) {
  const Loads loads = zipf(16, 0.5);
  ExpertPlaces one(16, 4);
  EXPECT_EQ(balance_by_swaps(one, loads, 1.0, 1).size(), 1u);
  ExpertPlaces some(16, 4);
  balance_by_swaps(some, loads, 1.3, 1000);
  EXPECT_LE(rank_imbalance(some, loads), 1.3);
  EXPECT_GT(rank_imbalance(some, loads), 1.1);
  ExpertPlaces none(16, 4);
  EXPECT_TRUE(balance_by_swaps(none, Loads(16), 1.0, 1000).empty());
  EXPECT_EQ(rank_imbalance(none, Loads(16)), 1.0);
}

TEST(MoePlaces, SwapsLeadToAnyMap) {
  std::mt19937_64 engine(3);
  for (const int experts : {1, 2, 7, 16}) {
    std::vector<Index> map(static_cast<std::size_t>(experts));
    std::iota(map.begin(), map.end(), Index{0});
    std::shuffle(map.begin(), map.end(), engine);
    ExpertPlaces places(experts, experts > 3 ? 3 : 1);
    for (const auto& [a, b] : places.swaps_to(map)) places.swap(a, b);
    EXPECT_EQ(places.place_of(), map);
    for (Index e = 0; e < experts; ++e) {
      const Range held = places.of_rank(places.rank_of(e));
      const Index place = map[static_cast<std::size_t>(e)];
      EXPECT_TRUE(place >= held.begin && place < held.end);
      EXPECT_EQ(places.expert_at(place), e);
    }
  }
  EXPECT_FALSE(is_permutation({0, 2}));
  EXPECT_FALSE(is_permutation({1, 1}));
}

}  // namespace
}  // namespace fourfold
