// Which rank holds which expert, and how experts change places where the ranks' loads are uneven (Piper's expert
// migration). Arithmetic only.
#pragma once

#include <utility>
#include <vector>

#include "grid/partition.hpp"
#include "kernels/types.hpp"

namespace fourfold {

using kernels::Index;

// Which rank of `expert` holds which expert: places are cut over the ranks by quotient and remainder. At first each
// expert is at the place of its own number.
class ExpertPlaces {
 public:
  ExpertPlaces(Index experts, int ranks);
  Index experts() const { return static_cast<Index>(place_of_.size()); }
  int ranks() const { return ranks_; }
  Range of_rank(int rank) const { return part(experts(), ranks_, rank); }
  const std::vector<Index>& place_of() const { return place_of_; }  // by expert
  Index expert_at(Index place) const { return expert_at_[static_cast<std::size_t>(place)]; }
  int rank_of(Index expert) const;
  // The two experts change places.
  void swap(Index a, Index b);
  // The swaps, one after the other, that bring every expert to its place in `place_of`, a permutation.
  std::vector<std::pair<Index, Index>> swaps_to(const std::vector<Index>& place_of) const;
  bool operator==(const ExpertPlaces&) const = default;

 private:
  int ranks_;
  std::vector<Index> place_of_, expert_at_;
};

bool is_permutation(const std::vector<Index>& list);  // of 0, 1, ... as many as it has

// The largest load of a rank over the mean; 1 where there is no load. loads: by expert.
double rank_imbalance(const ExpertPlaces& places, const std::vector<double>& loads);

// Swaps of experts of two ranks, each the best of all that there are: the one after which the largest load of a rank is
// least, of equal ones that with the least sum of squared loads, then with the lower experts. Ends where
// rank_imbalance() is at most `tau`, after `most` swaps, or where no swap makes it better; then `places`, which follow
// the swaps, are the optimum of their neighbourhood.
std::vector<std::pair<Index, Index>> balance_by_swaps(ExpertPlaces& places, const std::vector<double>& loads,
                                                      double tau, Index most);

}  // namespace fourfold
