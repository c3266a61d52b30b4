#include "train/expert_mover.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "base/error.hpp"
#include "comm/collectives.hpp"
#include "kernels/vector.hpp"
#include "optim/tensor_sums.hpp"
#include "tensor/number.hpp"

namespace fourfold {

namespace {

constexpr std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

// Elements of parameter `param` that go from one member of the group to another.
struct Piece {
  std::int64_t param = 0;
  int from = 0, to = 0;
  Range range;
};

// ranges: member by member, those of its parameters.
using Ranges = std::vector<std::vector<Range>>;

Ranges ranges_of_all(const Communicator& group, const std::vector<Range>& mine) {
  std::vector<std::int64_t> own;
  for (const Range& range : mine) own.insert(own.end(), {range.begin, range.end});
  std::vector<std::int64_t> all(own.size() * at(group.size()));
  all_gather<std::int64_t>(group, own, all, std::vector<std::int64_t>(at(group.size()), std::ssize(own)),
                           Phase::update);
  Ranges ranges(at(group.size()));
  auto next = all.begin();
  for (std::vector<Range>& member : ranges) {
    for (std::size_t i = 0; i < mine.size(); ++i, next += 2) member.push_back({next[0], next[1]});
  }
  return ranges;
}

// Who of `holders` sends element `element`: one of the receiver's replica where it has it, else the first.
int sender_of(const std::vector<int>& holders, const Ranges& before, std::int64_t param, std::int64_t element,
              int receiver, int experts) {
  int first = -1;
  for (const int member : holders) {
    const Range& range = before[at(member)][at(param)];
    if (element < range.begin || element >= range.end) continue;
    if (member / experts == receiver / experts) return member;
    if (first < 0) first = member;
  }
  FOURFOLD_ASSERT(first >= 0, "some rank has each number of an expert");
  return first;
}

// By receiver, parameter and element. experts: ranks of a replica in the group.
std::vector<Piece> pieces_between(const Ranges& before, const Ranges& after, int experts) {
  const auto members = static_cast<int>(before.size());
  const auto params = static_cast<std::int64_t>(before.front().size());
  std::vector<std::vector<int>> holders(at(params));
  for (std::int64_t param = 0; param < params; ++param) {
    for (int member = 0; member < members; ++member) {
      if (!before[at(member)][at(param)].empty()) holders[at(param)].push_back(member);
    }
  }
  std::vector<Piece> pieces;
  for (int to = 0; to < members; ++to) {
    for (std::int64_t param = 0; param < params; ++param) {
      const Range& wanted = after[at(to)][at(param)];
      for (std::int64_t next = wanted.begin; next < wanted.end;) {
        const int from = sender_of(holders[at(param)], before, param, next, to, experts);
        const Range piece{next, std::min(wanted.end, before[at(from)][at(param)].end)};
        pieces.push_back({param, from, to, piece});
        next = piece.end;
      }
    }
  }
  return pieces;
}

}  // namespace

template <class T>
typename ExpertMover<T>::template Held<T> ExpertMover<T>::values_of(const Param<T>& param) const {
  return {{0, param.spec.shard.size()}, param.value};
}

template <class T>
std::vector<typename ExpertMover<T>::template Held<kernels::Acc<T>>> ExpertMover<T>::states_of(
    const std::vector<Param<T>*>& params, const std::string& kind) const {
  std::map<const Param<T>*, kernels::Vector<A>> states;
  for (const auto& state : optimizer_.states()) {
    if (state.kind == kind) states.emplace(state.param, state.values);
  }
  std::vector<Held<A>> held;
  for (const Param<T>* param : params)
    held.push_back({range_in_part(*param, plan_.group(at(param->group))), states.at(param)});
  return held;
}

template <class T>
template <class E>
std::int64_t ExpertMover<T>::exchange(const std::vector<Held<E>>& before, const std::vector<Held<E>>& after) const {
  const Communicator& group = comms_.group({Axis::replica, Axis::expert});
  const auto ranges = [](const std::vector<Held<E>>& held) {
    std::vector<Range> list;
    for (const Held<E>& each : held) list.push_back(each.range);
    return list;
  };
  const std::vector<Piece> pieces = pieces_between(
      ranges_of_all(group, ranges(before)), ranges_of_all(group, ranges(after)), comms_.group({Axis::expert}).size());
  std::vector<Piece> leave, come;
  std::vector<std::int64_t> leaving(at(group.size())), coming(at(group.size()));
  for (const Piece& piece : pieces) {
    if (piece.from == group.rank()) {
      leave.push_back(piece);
      leaving[at(piece.to)] += piece.range.size();
    }
    if (piece.to == group.rank()) {
      come.push_back(piece);
      coming[at(piece.from)] += piece.range.size();
    }
  }
  std::stable_sort(come.begin(), come.end(), [](const Piece& a, const Piece& b) { return a.from < b.from; });

  const Space space;
  const auto total = [](const std::vector<Piece>& list) {
    Index sum = 0;
    for (const Piece& piece : list) sum += piece.range.size();
    return sum;
  };
  const Tensor<E> out(pool_, MemoryTag::buffers, 1, total(leave));
  const Tensor<E> in(pool_, MemoryTag::buffers, 1, total(come));
  const auto place = [](const std::vector<Held<E>>& held, const Piece& piece) {
    const Held<E>& its = held[at(piece.param)];
    return its.values.data() + (piece.range.begin - its.range.begin);
  };
  Index next = 0;
  for (const Piece& piece : leave) {
    const Index size = piece.range.size();
    kernels::copy<E>(space, kernels::Vector<const E>(place(before, piece), size),
                     kernels::Vector<E>(out.data() + next, size));
    next += size;
  }
  space.fence();
  all_to_all<Wire<E>>(group, wire(out.vector()), leaving, wire(in.vector()), coming, Phase::update);
  next = 0;
  for (const Piece& piece : come) {
    const Index size = piece.range.size();
    kernels::copy<E>(space, kernels::Vector<const E>(in.data() + next, size),
                     kernels::Vector<E>(place(after, piece), size));
    next += size;
  }
  space.fence();
  return out.size() * static_cast<std::int64_t>(sizeof(E));
}

template <class T>
std::int64_t ExpertMover<T>::swap(MoeLayer<T>& layer, const std::vector<std::pair<Index, Index>>& swaps) {
  store_.finish_gathers();
  std::set<Index> experts;
  for (const auto& [a, b] : swaps) experts.insert({a, b});
  std::vector<Param<T>*> params;
  for (const Index expert : experts) {
    for (Param<T>* param : layer.expert_params(expert)) params.push_back(param);
  }
  const auto values = [&] {
    std::vector<Held<T>> held;
    for (const Param<T>* param : params) held.push_back(values_of(*param));
    return held;
  };
  const auto states = [&] {
    std::vector<std::vector<Held<A>>> held;
    for (const std::string& kind : optimizer_.kinds()) held.push_back(states_of(params, kind));
    return held;
  };
  const auto values_before = values();
  const auto states_before = states();
  for (const auto& [a, b] : swaps) layer.swap_experts(a, b);
  optimizer_.follow_places();
  std::int64_t bytes = exchange<T>(values_before, values());
  const auto states_after = states();
  for (std::size_t kind = 0; kind < states_before.size(); ++kind)
    bytes += exchange<A>(states_before[kind], states_after[kind]);
  return bytes;
}

template class ExpertMover<float>;
template class ExpertMover<double>;
template class ExpertMover<kernels::bf16>;

}  // namespace fourfold
