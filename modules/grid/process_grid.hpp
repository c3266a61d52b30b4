// Ranks to coordinates to groups, for all stages and both views. Needs no MPI: `check` uses it on a login node.
#pragma once

#include <string>
#include <vector>

#include "grid/axes.hpp"
#include "grid/factorisation.hpp"

namespace fourfold {

// One rank's place. Dense and MoE coordinates name the same rank in the two views.
struct Coordinates {
  int stage = 0;
  int data = 0, depth = 0, row = 0, col = 0;
  int replica = 0, expert = 0, moe_row = 0, moe_col = 0;
  int operator[](Axis axis) const;
  bool operator==(const Coordinates&) const = default;
};

// The layout of all ranks. From the inside out slots are numbered col, row, depth, data, stage (MoE: moe_col, moe_row,
// expert, replica, stage); `placement[slot]` is the rank that sits there (empty: rank = slot).
class ProcessGrid {
 public:
  // Errors (Error, input): no stage, an axis below 1, a stage whose two views differ in size, a placement that is not a
  // permutation.
  explicit ProcessGrid(std::vector<StageShape> stages, std::vector<int> placement = {});

  int ranks() const { return ranks_; }
  int stages() const { return static_cast<int>(stages_.size()); }
  const StageShape& stage(int index) const { return stages_[static_cast<std::size_t>(index)]; }
  int extent(int stage, Axis axis) const;  // of `stage`: the number of stages
  bool equal_stages() const;               // all stages have the same grids

  Coordinates coordinates(int rank) const;
  // The rank at a stage's dense (or MoE) coordinates; the other view's fields are not looked at.
  int rank_at_dense(const Coordinates& where) const;
  int rank_at_moe(const Coordinates& where) const;

  // The ranks of `rank`'s stage that differ from it only in the given axes of one view, in coordinate order (the first
  // axis of the numbering fastest). The empty set gives {rank}. {stage}: the ranks at the same place of every stage,
  // where all stages have equal grids. With tied_stage those of stage 0 come first. Errors: assertion when axes of both
  // views are mixed, when stages with unequal grids are asked for {stage} or tied, or a rank of a third stage for the
  // latter.
  std::vector<int> group(int rank, GroupKey key) const;

  // The ranks of a stage in the order of its dense coordinates, col fastest.
  std::vector<int> ranks_of_stage(int stage) const;

  // rank -> coordinates (-> host, where `hosts` holds one a rank), one line a rank, aligned. With more than `most`
  // ranks the first and the last ones, and how many lie between.
  std::string table(int most, const std::vector<std::string>& hosts = {}) const;

 private:
  int slot_of(int rank) const;  // checked
  int stage_of_slot(int slot) const;
  int first_slot(int stage) const { return first_slot_[static_cast<std::size_t>(stage)]; }
  int rank_of_slot(int slot) const { return rank_of_slot_[static_cast<std::size_t>(slot)]; }

  std::vector<StageShape> stages_;
  std::vector<int> first_slot_;  // of each stage, and the total at the end
  std::vector<int> rank_of_slot_, slot_of_rank_;
  int ranks_ = 0;
};

}  // namespace fourfold
