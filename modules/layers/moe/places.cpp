#include "layers/moe/places.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>

#include "base/error.hpp"

namespace fourfold {

namespace {

constexpr std::size_t at(Index index) {
  return static_cast<std::size_t>(index);
}

std::vector<double> loads_of_ranks(const ExpertPlaces& places, const std::vector<double>& loads) {
  std::vector<double> sums(at(places.ranks()));
  for (Index e = 0; e < places.experts(); ++e) sums[at(places.rank_of(e))] += loads[at(e)];
  return sums;
}

// A placement's cost: the largest load of a rank, then the sum of squares.
struct Cost {
  double largest = 0, squares = 0;
  auto operator<=>(const Cost&) const = default;
};

Cost cost_of(const std::vector<double>& ranks) {
  Cost cost;
  for (const double load : ranks) {
    cost.largest = std::max(cost.largest, load);
    cost.squares += load * load;
  }
  return cost;
}

// Only swaps with an expert of the heaviest rank can lower the largest load.
std::optional<std::pair<Index, Index>> best_swap(const ExpertPlaces& places, const std::vector<double>& loads) {
  const std::vector<double> ranks = loads_of_ranks(places, loads);
  const auto heaviest = static_cast<int>(std::max_element(ranks.begin(), ranks.end()) - ranks.begin());
  Cost best = cost_of(ranks);
  std::optional<std::pair<Index, Index>> swap;
  for (Index e = 0; e < places.experts(); ++e) {
    if (places.rank_of(e) != heaviest) continue;
    for (Index f = 0; f < places.experts(); ++f) {
      const int other = places.rank_of(f);
      if (other == heaviest || !(loads[at(f)] < loads[at(e)])) continue;
      std::vector<double> after = ranks;
      after[at(heaviest)] += loads[at(f)] - loads[at(e)];
      after[at(other)] += loads[at(e)] - loads[at(f)];
      const Cost cost = cost_of(after);
      if (cost < best) {
        best = cost;
        swap = {e, f};
      }
    }
  }
  return swap;
}

}  // namespace

ExpertPlaces::ExpertPlaces(Index experts, int ranks) : ranks_(ranks), place_of_(at(experts)), expert_at_(at(experts)) {
  std::iota(place_of_.begin(), place_of_.end(), Index{0});
  std::iota(expert_at_.begin(), expert_at_.end(), Index{0});
}

// The first `rest` ranks have one place more.
int ExpertPlaces::rank_of(Index expert) const {
  const Index place = place_of_[at(expert)];
  const Index least = experts() / ranks_;
  const Index rest = experts() % ranks_;
  const Index in_first = rest * (least + 1);
  return static_cast<int>(place < in_first ? place / (least + 1) : rest + (place - in_first) / least);
}

void ExpertPlaces::swap(Index a, Index b) {
  std::swap(place_of_[at(a)], place_of_[at(b)]);
  expert_at_[at(place_of_[at(a)])] = a;
  expert_at_[at(place_of_[at(b)])] = b;
}

std::vector<std::pair<Index, Index>> ExpertPlaces::swaps_to(const std::vector<Index>& place_of) const {
  FOURFOLD_ASSERT(place_of.size() == place_of_.size() && is_permutation(place_of), "each expert has a place");
  ExpertPlaces now = *this;
  std::vector<std::pair<Index, Index>> swaps;
  for (Index e = 0; e < experts(); ++e) {
    const Index there = now.expert_at(place_of[at(e)]);
    if (there == e) continue;
    now.swap(e, there);
    swaps.emplace_back(e, there);
  }
  return swaps;
}

bool is_permutation(const std::vector<Index>& list) {
  std::vector<bool> seen(list.size());
  for (const Index each : list) {
    if (each < 0 || each >= std::ssize(list) || seen[at(each)]) return false;
    seen[at(each)] = true;
  }
  return true;
}

double rank_imbalance(const ExpertPlaces& places, const std::vector<double>& loads) {
  const std::vector<double> ranks = loads_of_ranks(places, loads);
  const double sum = std::accumulate(ranks.begin(), ranks.end(), 0.0);
  return sum > 0 ? *std::max_element(ranks.begin(), ranks.end()) * static_cast<double>(ranks.size()) / sum : 1.0;
}

std::vector<std::pair<Index, Index>> balance_by_swaps(ExpertPlaces& places, const std::vector<double>& loads,
                                                      double tau, Index most) {
  std::vector<std::pair<Index, Index>> swaps;
  while (std::ssize(swaps) < most && rank_imbalance(places, loads) > tau) {
    const auto swap = best_swap(places, loads);
    if (!swap) break;
    places.swap(swap->first, swap->second);
    swaps.push_back(*swap);
  }
  return swaps;
}

}  // namespace fourfold
