#include "optim/tied_sum.hpp"

#include <array>

#include "base/error.hpp"
#include "comm/collectives.hpp"
#include "optim/tensor_sums.hpp"

namespace fourfold {

namespace {

constexpr int kTag = 0;

std::vector<int> ranks_of_both(const ProcessGrid& grid, int stage) {
  std::vector<int> ranks = grid.ranks_of_stage(0);
  const std::vector<int> others = grid.ranks_of_stage(stage);
  ranks.insert(ranks.end(), others.begin(), others.end());
  return ranks;
}

// Of every rank of the group.
std::vector<Holding> gather_holdings(const Communicator& group, const Shard& shard) {
  constexpr std::size_t kNumbers = 6;
  const std::array<std::int64_t, kNumbers> mine{shard.box[0].begin, shard.box[0].end, shard.box[1].begin,
                                                shard.box[1].end,   shard.flat.begin, shard.flat.end};
  const auto ranks = static_cast<std::size_t>(group.size());
  std::vector<std::int64_t> all(kNumbers * ranks);
  const std::vector<std::int64_t> sizes(ranks, kNumbers);
  all_gather<std::int64_t>(group, mine, all, sizes, Phase::setup);
  std::vector<Holding> holdings;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::int64_t* its = all.data() + kNumbers * rank;
    holdings.push_back(holding_of(Shard{shard.shape, {{its[0], its[1]}, {its[2], its[3]}}, {its[4], its[5]}}));
  }
  return holdings;
}

}  // namespace

template <class T>
TiedSum<T>::TiedSum(const UpdatePlan& plan, const GridComms& comms, ParamStore<T>& store, int stage, Pool& pool)
    : both_(comms.world(), ranks_of_both(comms.grid(), stage), "tied"), pool_(pool) {
  const std::vector<ParamGroup<T>>& groups = store.groups();
  while (group_ < groups.size() && groups[group_].chunk != kSharedChunk) ++group_;
  FOURFOLD_ASSERT(group_ < groups.size() && groups[group_].params.size() == 1, "one matrix is held by two stages");
  const Param<T>& param = *groups[group_].params.front();
  const Range block = plan.group(group_).blocks.back();
  Range mine = intersect(block, Range{0, param.spec.shard.size()});
  if (mine.empty()) mine = {0, 0};
  part_ = kernels::Vector<kernels::Acc<T>>(param.grad.data() + mine.begin, mine.size());

  const std::vector<Holding> all = gather_holdings(both_, part_of_shard(param.spec.shard, mine));
  const auto firsts = static_cast<int>(comms.grid().stage(0).size());
  const std::vector<Holding> first(all.begin(), all.begin() + firsts), second(all.begin() + firsts, all.end());
  const bool here = both_.rank() < firsts;  // on the first stage
  const int me = here ? both_.rank() : both_.rank() - firsts;
  send_ = pieces_to_send(here ? first : second, here ? second : first, me);
  receive_ = pieces_to_receive(here ? second : first, here ? first : second, me);
  for (auto* pieces : {&send_, &receive_}) {
    for (CrossingPiece& piece : *pieces) piece.peer += here ? firsts : 0;
  }
}

template <class T>
void TiedSum<T>::add() const {
  using A = kernels::Acc<T>;
  std::vector<Tensor<A>> buffers, packed;
  std::vector<Pending> under_way;
  for (const CrossingPiece& piece : receive_) {
    const Tensor<A>& buffer = buffers.emplace_back(pool_, MemoryTag::buffers, 1, piece.elements);
    under_way.push_back(start_receive<A>(both_, {buffer.data(), static_cast<std::size_t>(buffer.size())}, piece.peer,
                                         kTag, Phase::gradient));
  }
  for (const CrossingPiece& piece : send_) {
    const Tensor<A>& buffer = packed.emplace_back(pool_, MemoryTag::buffers, 1, piece.elements);
    pack<A>(piece, part_, buffer.vector());
  }
  Space().fence();
  for (std::size_t i = 0; i < send_.size(); ++i) {
    under_way.push_back(start_send<A>(both_, {packed[i].data(), static_cast<std::size_t>(packed[i].size())},
                                      send_[i].peer, kTag, Phase::gradient));
  }
  for (Pending& message : under_way) message.wait();
  for (std::size_t i = 0; i < receive_.size(); ++i) unpack_add<A>(receive_[i], buffers[i].vector(), part_);
}

template class TiedSum<float>;
template class TiedSum<double>;
template class TiedSum<kernels::bf16>;

}  // namespace fourfold
