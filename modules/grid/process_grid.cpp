#include "grid/process_grid.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.hpp"

namespace fourfold {

namespace {

constexpr int kMostRanks = std::numeric_limits<int>::max();

// One axis of a view, with its extent: in the order of the numbering, the fastest first.
struct AxisExtent {
  Axis axis;
  int extent;
};
using View = std::array<AxisExtent, 4>;

View view_of(const DenseShape& s) {
  return {{{Axis::col, s.col}, {Axis::row, s.row}, {Axis::depth, s.depth}, {Axis::data, s.data}}};
}

View view_of(const MoeShape& s) {
  return {{{Axis::moe_col, s.col}, {Axis::moe_row, s.row}, {Axis::expert, s.expert}, {Axis::replica, s.replica}}};
}

constexpr AxisSet kDenseAxes{Axis::col, Axis::row, Axis::depth, Axis::data};
constexpr AxisSet kMoeAxes{Axis::moe_col, Axis::moe_row, Axis::expert, Axis::replica};

bool share(AxisSet axes, AxisSet others) {
  for (int i = 0; i < kAxes; ++i) {
    if (axes.has(static_cast<Axis>(i)) && others.has(static_cast<Axis>(i))) return true;
  }
  return false;
}

// The size of a view, checked: a product of four ints may pass 64 bits.
std::int64_t checked_size(int stage, const View& view) {
  std::int64_t size = 1;
  for (const auto& [axis, extent] : view) {
    if (extent < 1) {
      fail_all(ExitCode::input,
               fmt::format("stage {}: axis {} is {}; every axis has at least 1 rank", stage, axis_name(axis), extent));
    }
    size *= extent;
    if (size > kMostRanks) fail_all(ExitCode::input, fmt::format("stage {}: more than {} ranks", stage, kMostRanks));
  }
  return size;
}

// The field of an axis, of a const place too.
template <class Place>
auto& field(Place& where, Axis axis) {
  switch (axis) {
    case Axis::col:
      return where.col;
    case Axis::row:
      return where.row;
    case Axis::depth:
      return where.depth;
    case Axis::data:
      return where.data;
    case Axis::moe_col:
      return where.moe_col;
    case Axis::moe_row:
      return where.moe_row;
    case Axis::expert:
      return where.expert;
    case Axis::replica:
      return where.replica;
    case Axis::stage:
      break;
  }
  return where.stage;
}

void set_coordinates(Coordinates& where, const View& view, int slot_in_stage) {
  for (const auto& [axis, extent] : view) {
    field(where, axis) = slot_in_stage % extent;
    slot_in_stage /= extent;
  }
}

int slot_in_stage(const Coordinates& where, const View& view) {
  int slot = 0;
  int stride = 1;
  for (const auto& [axis, extent] : view) {
    const int at = where[axis];
    FOURFOLD_ASSERT(at >= 0 && at < extent, fmt::format("coordinate {} on axis {} of {}", at, axis_name(axis), extent));
    slot += at * stride;
    stride *= extent;
  }
  return slot;
}

}  // namespace

int Coordinates::operator[](Axis axis) const {
  return field(*this, axis);
}

ProcessGrid::ProcessGrid(std::vector<StageShape> stages, std::vector<int> placement) : stages_(std::move(stages)) {
  if (stages_.empty()) fail_all(ExitCode::input, "a grid has at least one stage");
  first_slot_.reserve(stages_.size() + 1);
  std::int64_t total = 0;
  for (int i = 0; i < this->stages(); ++i) {
    const StageShape& shape = stage(i);
    const std::int64_t dense = checked_size(i, view_of(shape.dense));
    const std::int64_t moe = checked_size(i, view_of(shape.moe));
    if (dense != moe) {
      fail_all(
          ExitCode::input,
          fmt::format("stage {}: the dense grid ({}) has {} ranks and the MoE grid ({}) has {}; they are two views "
                      "of the same ranks. MoE grids of {}: {}",
                      i, shape_text(shape.dense), dense, shape_text(shape.moe), moe, dense,
                      factorisation_hint(static_cast<int>(dense), shape.moe)));
    }
    first_slot_.push_back(static_cast<int>(total));
    total += dense;
    if (total > kMostRanks) fail_all(ExitCode::input, fmt::format("the stages have more than {} ranks", kMostRanks));
  }
  ranks_ = static_cast<int>(total);
  first_slot_.push_back(ranks_);

  rank_of_slot_ = std::move(placement);
  if (rank_of_slot_.empty()) {
    rank_of_slot_.resize(static_cast<std::size_t>(ranks_));
    std::iota(rank_of_slot_.begin(), rank_of_slot_.end(), 0);
  }
  if (rank_of_slot_.size() != static_cast<std::size_t>(ranks_)) {
    fail_all(ExitCode::input,
             fmt::format("the placement names {} ranks, the grid has {}", rank_of_slot_.size(), ranks_));
  }
  slot_of_rank_.assign(static_cast<std::size_t>(ranks_), -1);
  for (int slot = 0; slot < ranks_; ++slot) {
    const int rank = rank_of_slot_[static_cast<std::size_t>(slot)];
    if (rank < 0 || rank >= ranks_) {
      fail_all(ExitCode::input, fmt::format("the placement names rank {}; ranks run from 0 to {}", rank, ranks_ - 1));
    }
    int& at = slot_of_rank_[static_cast<std::size_t>(rank)];
    if (at != -1) fail_all(ExitCode::input, fmt::format("the placement names rank {} twice", rank));
    at = slot;
  }
}

int ProcessGrid::extent(int stage_index, Axis axis) const {
  if (axis == Axis::stage) return stages();
  const StageShape& shape = stage(stage_index);
  for (const View& view : {view_of(shape.dense), view_of(shape.moe)}) {
    for (const AxisExtent& entry : view) {
      if (entry.axis == axis) return entry.extent;
    }
  }
  return 1;
}

bool ProcessGrid::equal_stages() const {
  return std::all_of(stages_.begin(), stages_.end(), [&](const StageShape& shape) { return shape == stages_.front(); });
}

std::vector<int> ProcessGrid::ranks_of_stage(int stage_index) const {
  FOURFOLD_ASSERT(stage_index >= 0 && stage_index < stages(), fmt::format("stage {} of {}", stage_index, stages()));
  return {rank_of_slot_.begin() + first_slot(stage_index), rank_of_slot_.begin() + first_slot(stage_index + 1)};
}

int ProcessGrid::slot_of(int rank) const {
  FOURFOLD_ASSERT(rank >= 0 && rank < ranks_, fmt::format("rank {} of {}", rank, ranks_));
  return slot_of_rank_[static_cast<std::size_t>(rank)];
}

int ProcessGrid::stage_of_slot(int slot) const {
  return static_cast<int>(std::upper_bound(first_slot_.begin(), first_slot_.end(), slot) - first_slot_.begin()) - 1;
}

Coordinates ProcessGrid::coordinates(int rank) const {
  const int slot = slot_of(rank);
  Coordinates where;
  where.stage = stage_of_slot(slot);
  const int inside = slot - first_slot(where.stage);
  set_coordinates(where, view_of(stage(where.stage).dense), inside);
  set_coordinates(where, view_of(stage(where.stage).moe), inside);
  return where;
}

int ProcessGrid::rank_at_dense(const Coordinates& where) const {
  FOURFOLD_ASSERT(where.stage >= 0 && where.stage < stages(), fmt::format("stage {} of {}", where.stage, stages()));
  return rank_of_slot(first_slot(where.stage) + slot_in_stage(where, view_of(stage(where.stage).dense)));
}

int ProcessGrid::rank_at_moe(const Coordinates& where) const {
  FOURFOLD_ASSERT(where.stage >= 0 && where.stage < stages(), fmt::format("stage {} of {}", where.stage, stages()));
  return rank_of_slot(first_slot(where.stage) + slot_in_stage(where, view_of(stage(where.stage).moe)));
}

std::vector<int> ProcessGrid::group(int rank, GroupKey key) const {
  const AxisSet axes = key.axes;
  const bool moe = share(axes, kMoeAxes);
  FOURFOLD_ASSERT(!(moe && (share(axes, kDenseAxes) || key.row_block > 1)),
                  "one group has axes of one view: " + key.name());
  const int slot = slot_of(rank);
  const int mine = stage_of_slot(slot);
  const View view = moe ? view_of(stage(mine).moe) : view_of(stage(mine).dense);
  // How many neighbours on an axis belong together.
  const auto together = [&](Axis axis, int extent) {
    if (axes.has(axis)) return extent;
    if (axis != Axis::row || key.row_block == 1) return 1;
    FOURFOLD_ASSERT(extent % key.row_block == 0, "row is cut into equal blocks: " + key.name());
    return key.row_block;
  };

  int corner = slot - first_slot(mine);  // of the group: its lowest place on every axis
  std::size_t size = 1;
  int stride = 1;
  for (const auto& [axis, extent] : view) {
    const int block = together(axis, extent);
    corner -= corner / stride % extent % block * stride;
    size *= static_cast<std::size_t>(block);
    stride *= extent;
  }

  // Slots inside the stage, the fastest axis first: each axis repeats what is there once per coordinate.
  std::vector<int> members;
  members.reserve(size);
  members.push_back(corner);
  stride = 1;
  for (const auto& [axis, extent] : view) {
    const int block = together(axis, extent);
    const std::size_t inner = members.size();
    for (int at = 1; at < block; ++at) {
      for (std::size_t i = 0; i < inner; ++i) members.push_back(members[i] + at * stride);
    }
    stride *= extent;
  }

  std::vector<int> of_stages;  // none: this one
  if (axes.has(Axis::stage)) {
    for (int s = 0; s < stages(); ++s) of_stages.push_back(s);
  } else if (key.tied_stage > 0) {
    FOURFOLD_ASSERT(mine == 0 || mine == key.tied_stage, "a rank of one of the two stages: " + key.name());
    of_stages = {0, key.tied_stage};
  }
  if (!of_stages.empty()) {
    const std::vector<int> inside = std::move(members);
    members.clear();
    members.reserve(inside.size() * of_stages.size());
    for (const int s : of_stages) {
      FOURFOLD_ASSERT(stage(s) == stage(mine), "a group over the stage axis needs equal stages");
      for (const int at : inside) members.push_back(rank_of_slot(first_slot(s) + at));
    }
  } else {
    for (int& member : members) member = rank_of_slot(first_slot(mine) + member);
  }
  return members;
}

std::string ProcessGrid::table(int most, const std::vector<std::string>& hosts) const {
  FOURFOLD_ASSERT(most >= 4 && (hosts.empty() || std::ssize(hosts) == ranks_), "four lines at least, a host a rank");
  std::string text = fmt::format("{:>7} {:>5} | {:>5} {:>5} {:>5} {:>5} | {:>7} {:>6} {:>5} {:>5}", "rank", "stage",
                                 "data", "depth", "row", "col", "replica", "expert", "row", "col");
  text += hosts.empty() ? "\n" : " | host\n";
  const int last = ranks_ > most ? ranks_ - most / 4 : ranks_;  // the tail begins here
  const int skipped = ranks_ > most ? ranks_ - most : 0;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (skipped > 0 && rank == last - skipped) {
      text += fmt::format("    ... {} ranks left out\n", skipped);
      rank = last;
    }
    const Coordinates c = coordinates(rank);
    text += fmt::format("{:>7} {:>5} | {:>5} {:>5} {:>5} {:>5} | {:>7} {:>6} {:>5} {:>5}", rank, c.stage, c.data,
                        c.depth, c.row, c.col, c.replica, c.expert, c.moe_row, c.moe_col);
    text += hosts.empty() ? "\n" : " | " + hosts[static_cast<std::size_t>(rank)] + "\n";
  }
  return text;
}

}  // namespace fourfold
