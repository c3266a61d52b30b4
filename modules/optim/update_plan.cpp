#include "optim/update_plan.hpp"

#include <algorithm>
#include <map>
#include <string>

#include "base/error.hpp"
#include "comm/agree.hpp"
#include "deck/derive.hpp"
#include "kernels/vector.hpp"

namespace fourfold {

namespace {

constexpr std::size_t kBucketsUnderWay = 4;

// The members of `group` with the same `label` as this rank, and those that stand at this rank's place among theirs.
struct Split {
  std::vector<int> inside, across;
  bool equal = true;  // every label has as many members
};

Split split_by(const Communicator& group, const std::vector<int>& labels) {
  std::map<int, std::vector<int>> members;
  for (int r = 0; r < group.size(); ++r) members[labels[static_cast<std::size_t>(r)]].push_back(r);
  Split split;
  split.inside = members[labels[static_cast<std::size_t>(group.rank())]];
  const auto place = std::find(split.inside.begin(), split.inside.end(), group.rank()) - split.inside.begin();
  for (const auto& [label, ranks] : members) {
    if (ranks.size() != split.inside.size()) {
      split.equal = false;
    } else {
      split.across.push_back(ranks[static_cast<std::size_t>(place)]);
    }
  }
  return split;
}

Split split_by_node(const Communicator& group) {
  std::vector<int> nodes;
  for (int r = 0; r < group.size(); ++r) nodes.push_back(group.node_of(r));
  return split_by(group, nodes);
}

// The x of each member of a group on the mesh of a stage's ranks.
std::vector<int> mesh_columns(const GridComms& comms, const GroupKey& key, std::int64_t width) {
  const ProcessGrid& grid = comms.grid();
  std::vector<int> columns;
  for (const int rank : grid.group(comms.world().rank(), key)) {
    const Coordinates at = grid.coordinates(rank);
    const DenseShape& dense = grid.stage(at.stage).dense;
    const std::int64_t slot =
        ((std::int64_t{at.data} * dense.depth + at.depth) * dense.row + at.row) * dense.col + at.col;
    columns.push_back(static_cast<int>(slot % width));
  }
  return columns;
}

}  // namespace

template <class T>
UpdatePlan::UpdatePlan(const Deck& deck, const GridComms& comms, const ParamStore<T>& store) {
  if (deck.comm.gradient == GradientAlgorithm::two_level) {
    bool unequal = false;
    for (const ParamGroup<T>& group : store.groups()) {
      unequal = unequal || (!group.sum_over.empty() && !split_by_node(comms.group(group.sum_over)).equal);
    }
    if (agree_any(comms.world(), unequal)) {
      fail_all(ExitCode::input,
               "comm.gradient.algorithm: two_level needs as many ranks of a sum on every node; type "
               "flat, or choose ranks that fill the nodes");
    }
  }
  for (const ParamGroup<T>& group : store.groups()) {
    add(deck, comms, group.sum_over, group.values.size());
    GroupPlan& plan = groups_.back();
    if (!plan.sharded) plan.mine = {0, group.size};
  }
}

template UpdatePlan::UpdatePlan(const Deck&, const GridComms&, const ParamStore<float>&);
template UpdatePlan::UpdatePlan(const Deck&, const GridComms&, const ParamStore<double>&);
template UpdatePlan::UpdatePlan(const Deck&, const GridComms&, const ParamStore<kernels::bf16>&);

// Groups of one rank take no part in a sum: no communicator.
const Communicator* UpdatePlan::made(const Communicator& parent, const std::vector<int>& ranks,
                                     const std::string& name) {
  if (ranks.size() == 1) return nullptr;
  if (static_cast<int>(ranks.size()) == parent.size()) return &parent;
  return &made_.emplace_back(parent, ranks, name);
}

void UpdatePlan::add(const Deck& deck, const GridComms& comms, const GroupKey& key, Index padded) {
  GroupPlan& plan = groups_.emplace_back();
  plan.blocks.push_back({0, padded});
  if (key.empty() || comms.group(key).size() == 1) return;
  const Communicator& ranks = comms.group(key);
  const std::string name = key.name();
  using Kind = UpdateShard::Kind;
  const Kind shard = deck.optimizer.shard.kind;
  plan.sharded = shard != Kind::none;
  if (!plan.sharded) plan.copies = &ranks;
  const auto scatter_over = [&](const Communicator* level) {
    if (level == nullptr) return;
    const Range block = plan.blocks.back();
    FOURFOLD_ASSERT(block.size() % level->size() == 0, "the buffers of " + name + " are padded to whole parts");
    const Range piece = part(block.size(), level->size(), level->rank());
    plan.levels.push_back(level);
    plan.blocks.push_back({block.begin + piece.begin, block.begin + piece.end});
  };

  switch (deck.comm.gradient) {
    case GradientAlgorithm::flat: {
      if (shard == Kind::none) {
        plan.sum = &ranks;
      } else if (shard == Kind::data) {
        scatter_over(&ranks);
      } else {
        std::vector<int> blocks;
        for (int r = 0; r < ranks.size(); ++r) blocks.push_back(r / static_cast<int>(deck.optimizer.shard.count));
        const Split split = split_by(ranks, blocks);
        FOURFOLD_ASSERT(split.equal, "data_partial divides the data axis");
        scatter_over(made(ranks, split.inside, name + ":near"));
        plan.sum = plan.copies = made(ranks, split.across, name + ":copies");
      }
      break;
    }
    case GradientAlgorithm::torus2d: {
      const Split split = split_by(ranks, mesh_columns(comms, key, deck.comm.dims[0]));
      FOURFOLD_ASSERT(split.equal, "the ranks of " + name + " are a mesh of their own");
      scatter_over(made(ranks, split.inside, name + ":y"));
      scatter_over(made(ranks, split.across, name + ":x"));
      break;
    }
    case GradientAlgorithm::two_level: {
      const Split split = split_by_node(ranks);
      scatter_over(made(ranks, split.inside, name + ":node"));
      const Communicator* between = made(ranks, split.across, name + ":nodes");
      if (plan.sharded) {
        scatter_over(between);
      } else {
        plan.sum = between;
      }
      break;
    }
  }
  plan.mine = plan.blocks.back();
}

template <class A>
Pending start_reduce_to_part(const GroupPlan& plan, std::span<A> buffer, std::int64_t bucket_elements, bool overlap,
                             Summation summation) {
  std::deque<Pending> under_way;
  const std::size_t most = overlap ? kBucketsUnderWay : 1;
  const auto make_room = [&](std::size_t left) {
    while (under_way.size() > left) {
      under_way.front().wait();
      under_way.pop_front();
    }
  };
  for (std::size_t level = 0; level < plan.levels.size(); ++level) {
    const Communicator& ranks = *plan.levels[level];
    const Range block = plan.blocks[level];
    const Range mine = plan.blocks[level + 1];
    const std::int64_t slice = std::max<std::int64_t>(1, bucket_elements / ranks.size());
    for (std::int64_t begin = 0; begin < mine.size(); begin += slice) {
      const std::int64_t size = std::min(slice, mine.size() - begin);
      make_room(most - 1);
      under_way.push_back(start_reduce_scatter_slices<A>(
          ranks, buffer.data() + block.begin + begin, mine.size(),
          buffer.subspan(static_cast<std::size_t>(mine.begin + begin), static_cast<std::size_t>(size)), summation,
          Phase::gradient));
    }
    make_room(0);
  }
  if (plan.sum == nullptr) return {};
  const auto sums = std::make_shared<std::deque<Pending>>();
  const Range mine = plan.blocks.back();
  for (std::int64_t begin = mine.begin; begin < mine.end; begin += bucket_elements) {
    const std::int64_t size = std::min(bucket_elements, mine.end - begin);
    while (sums->size() >= most) {
      sums->front().wait();
      sums->pop_front();
    }
    sums->push_back(start_all_reduce_sum<A>(
        *plan.sum, buffer.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size)), summation,
        Phase::gradient));
    if (!overlap) sums->back().wait();
  }
  return Pending([sums] {
    for (Pending& sum : *sums) sum.wait();
  });
}

namespace {

template <class A>
Pending start_gather_level(const GroupPlan& plan, std::size_t level, std::span<A> buffer, Phase phase) {
  const auto piece = [&](Range range) {
    return buffer.subspan(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.size()));
  };
  const Communicator& ranks = *plan.levels[level];
  const Range mine = plan.blocks[level + 1];
  const std::vector<std::int64_t> sizes(static_cast<std::size_t>(ranks.size()), mine.size());
  return start_all_gather<A>(ranks, piece(mine), piece(plan.blocks[level]), sizes, phase);
}

}  // namespace

template <class A>
Pending start_gather_parts(const GroupPlan& plan, std::span<A> buffer, Phase phase) {
  const std::size_t levels = plan.levels.size();
  if (levels == 0 || buffer.empty()) return {};
  Pending last = start_gather_level<A>(plan, levels - 1, buffer, phase);
  if (levels == 1) return last;
  // The outer levels wait for the inner one's parts.
  return Pending([&plan, levels, buffer, phase, first = std::make_shared<Pending>(std::move(last))] {
    first->wait();
    for (std::size_t level = levels - 1; level-- > 0;) start_gather_level<A>(plan, level, buffer, phase).wait();
  });
}

#define FOURFOLD_PARTS(A)                                                                                  \
  template Pending start_reduce_to_part<A>(const GroupPlan&, std::span<A>, std::int64_t, bool, Summation); \
  template Pending start_gather_parts<A>(const GroupPlan&, std::span<A>, Phase);
FOURFOLD_PARTS(float)
FOURFOLD_PARTS(double)
template Pending start_gather_parts<std::uint16_t>(const GroupPlan&, std::span<std::uint16_t>, Phase);  // bf16 values
#undef FOURFOLD_PARTS

}  // namespace fourfold
