// The communicators of a process grid: every group that training uses is made at start, by all ranks in one order.
#pragma once

#include <map>

#include "comm/communicator.hpp"
#include "grid/process_grid.hpp"

namespace fourfold {

class GridComms {
 public:
  // Collective over `world` (world.size() == grid.ranks()). Makes a communicator for each set of axes in `sets`; a group
  // of one rank costs nothing.
  GridComms(const Communicator& world, const ProcessGrid& grid, const std::vector<AxisSet>& sets);

  const ProcessGrid& grid() const { return grid_; }
  const Communicator& world() const { return world_; }
  const Coordinates& here() const { return here_; }
  // Errors: assertion that lists the sets that exist when asked for another one.
  const Communicator& group(AxisSet axes) const;

 private:
  const Communicator& world_;
  ProcessGrid grid_;
  Coordinates here_;
  std::map<AxisSet, Communicator> groups_;
};

// The sets that dense layers, the gradient reducer and the optimizer use.
std::vector<AxisSet> dense_axis_sets();

}  // namespace fourfold
