#include "comm/grid_comms.hpp"

#include "base/error.hpp"

namespace fourfold {

GridComms::GridComms(const Communicator& world, const ProcessGrid& grid, const std::vector<GroupKey>& sets)
    : world_(world), grid_(grid) {
  FOURFOLD_ASSERT(world.size() == grid.ranks(), "the grid has " + std::to_string(grid.ranks()) +
                                                    " ranks, the job has " + std::to_string(world.size()));
  here_ = grid_.coordinates(world.rank());
  const AxisSet stage{Axis::stage};
  // All members of a group see the same members in each of their sets, so they make and share the same communicators.
  std::map<std::vector<int>, GroupKey> first_with;
  for (const GroupKey& key : sets) {
    if (groups_.contains(key)) continue;
    if (key.axes.has(Axis::stage) && !grid_.equal_stages()) {
      if (key == GroupKey(stage)) groups_.emplace(key, world.alias(key.name()));
      continue;
    }
    if (key.tied_stage > 0 && here_.stage != 0 && here_.stage != key.tied_stage) continue;
    const std::vector<int> members = grid_.group(world.rank(), key);
    const auto [same, is_new] = first_with.emplace(members, key);
    if (!is_new) {
      groups_.emplace(key, groups_.at(same->second).alias(key.name()));
      continue;
    }
    groups_.emplace(key, Communicator(world, members, key.name()));
    if (members.size() > 1) ++made_;
  }
}

const Communicator& GridComms::group(GroupKey key) const {
  const auto found = groups_.find(key);
  if (found != groups_.end()) return found->second;
  std::string known;
  for (const auto& [set, communicator] : groups_) known += (known.empty() ? "" : ", ") + set.name();
  assertion_failed("groups_.contains(key)", __FILE__, __LINE__,
                   "no communicator was made for '" + key.name() + "', only for " + known);
}

std::string GridComms::summary() const {
  std::string text;
  for (const auto& [set, communicator] : groups_) {
    if (communicator.size() == 1) continue;
    text += (text.empty() ? "" : ", ") + set.name() + " (" + std::to_string(communicator.size()) + " ranks)";
  }
  return (text.empty() ? "no group of more than one rank" : text) + "; " + std::to_string(made_) + " MPI communicators";
}

std::vector<GroupKey> dense_axis_sets(int row_block, int tied_stage) {
  const std::vector<AxisSet> axes = {{Axis::data}, {Axis::depth}, {Axis::row}, {Axis::col}};
  std::vector<GroupKey> sets;
  for (unsigned chosen = 1; chosen < 1u << axes.size(); ++chosen) {
    AxisSet set;
    for (std::size_t i = 0; i < axes.size(); ++i)
      if ((chosen >> i & 1u) != 0) set = set | axes[i];
    sets.push_back(set);
    if (row_block > 1 && !set.has(Axis::row)) sets.push_back(GroupKey(set, row_block));
  }
  sets.push_back(AxisSet{Axis::stage});
  if (tied_stage > 0) sets.push_back(GroupKey({Axis::data}, 1, tied_stage));
  return sets;
}

std::vector<GroupKey> moe_axis_sets() {
  return {AxisSet{Axis::replica}, AxisSet{Axis::expert}, AxisSet{Axis::moe_row}, AxisSet{Axis::moe_col},
          AxisSet{Axis::expert, Axis::moe_row, Axis::moe_col}};
}

}  // namespace fourfold
