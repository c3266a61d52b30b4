// The communicators of a process grid: every group that training uses is made at start, by all ranks in one order.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/virtual_clock.hpp"
#include "grid/process_grid.hpp"

namespace fourfold {

class GridComms {
 public:
  // Collective over `world` (world.size() == grid.ranks(), else assertion). Makes a communicator for each set of axes
  // in `sets`, named by the set. Cheap where it can be: a group of one rank makes none, and sets with the same members
  // (their other axes have one coordinate) share one. A tied one is left out on ranks of other stages. Where the stages
  // have different grids {stage} is all ranks of the job, for messages between them.
  GridComms(const Communicator& world, const ProcessGrid& grid, const std::vector<GroupKey>& sets);

  const ProcessGrid& grid() const { return grid_; }
  const Communicator& world() const { return world_; }
  VirtualClock& clock() const { return world_.clock(); }
  const Coordinates& here() const { return here_; }
  // Errors: assertion that lists the sets that exist when asked for another one.
  const Communicator& group(GroupKey key) const;
  int made() const { return made_; }  // MPI communicators
  // "data (4 ranks), row (2 ranks), data+row (8 ranks); 3 MPI communicators": this rank's groups of more than one rank.
  std::string summary() const;

 private:
  const Communicator& world_;
  ProcessGrid grid_;
  Coordinates here_;
  std::map<GroupKey, Communicator> groups_;
  int made_ = 0;
};

// The sets that dense layers, the gradient reducer and the optimizer use: every set of dense axes, and {stage}; where
// row_block > 1 neighbours on row hold the same KV head, also those with such a block; where tied_stage > 0 that stage
// and the first hold a matrix together, also its sums over data.
std::vector<GroupKey> dense_axis_sets(int row_block = 1, int tied_stage = 0);
// Those that MoE layers use beside them: each axis of the MoE grid, and all ranks of one replica of the experts.
std::vector<GroupKey> moe_axis_sets();

}  // namespace fourfold
