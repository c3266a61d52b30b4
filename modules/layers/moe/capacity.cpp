#include "layers/moe/capacity.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "layers/moe/lists.hpp"

namespace fourfold {

Index expert_capacity(double factor, Index tokens, Index top_k, Index experts) {
  const double exact = factor * static_cast<double>(tokens * top_k) / static_cast<double>(experts);
  return static_cast<Index>(std::ceil(exact * (1 - 1e-12)));  // 1.1 x 10 is 11
}

namespace {

struct Request {
  std::int64_t scope;
  std::int32_t expert;
  double score;     // 0 where position decides
  std::int64_t id;  // token number x k + slot
  std::int64_t at;  // among this rank's pairs; below zero: another rank's
};

// All ranks' lists side by side.
template <class E>
std::vector<E> gathered(const Communicator& group, const std::vector<E>& mine, const std::vector<Index>& sizes) {
  Index total = 0;
  for (const Index size : sizes) total += size;
  std::vector<E> all(static_cast<std::size_t>(total));
  all_gather<E>(group, mine, all, sizes, Phase::forward);
  return all;
}

}  // namespace

template <class T>
void drop_beyond_capacity(const LayerContext<T>& context, const MoeOptions& options, const PlannedPass<T>& pass,
                          const Tensor<std::int64_t>& numbers, const Tensor<kernels::Acc<T>>& scores,
                          const Tensor<std::int32_t>& choice) {
  const Index k = options.top_k;
  const bool by_sequence = options.capacity.scope == CapacityScope::sequence;
  AxisSet axes{Axis::row, Axis::col};
  if (!by_sequence || pass.rows.depth_parts) axes = axes | AxisSet{Axis::depth};
  if (!by_sequence) axes = axes | AxisSet{Axis::data};
  const Communicator& group = context.comms.group(axes);

  const std::vector<std::int64_t> ids = on_host<std::int64_t>(numbers.vector());
  std::vector<std::int32_t> chosen = on_host<std::int32_t>(choice.vector());
  std::vector<double> priority(chosen.size(), 0);
  const bool by_score = options.capacity.priority == CapacityPriority::probability;
  if (by_score) {
    const std::vector<kernels::Acc<T>> all = on_host<kernels::Acc<T>>(scores.vector());
    for (std::size_t p = 0; p < chosen.size(); ++p) {
      const std::size_t token = p / static_cast<std::size_t>(k);
      priority[p] = static_cast<double>(
          all[token * static_cast<std::size_t>(options.experts) + static_cast<std::size_t>(chosen[p])]);
    }
  }
  std::vector<Index> tokens(static_cast<std::size_t>(group.size()));
  const std::vector<Index> own{std::ssize(ids)};
  all_gather<std::int64_t>(group, own, tokens, std::vector<std::int64_t>(tokens.size(), 1), Phase::forward);
  std::vector<Index> pairs;
  for (const Index count : tokens) pairs.push_back(count * k);
  const std::vector<std::int64_t> all_ids = gathered(group, ids, tokens);
  const std::vector<std::int32_t> all_chosen = gathered(group, chosen, pairs);
  if (by_score) priority = gathered(group, priority, pairs);

  std::vector<Request> requests;
  requests.reserve(all_chosen.size());
  const Index mine = begins_of(pairs)[static_cast<std::size_t>(group.rank())];
  std::vector<std::int64_t> scopes;  // of each token, in order
  for (const std::int64_t id : all_ids) scopes.push_back(by_sequence ? id / pass.rows.sequence_tokens : 0);
  for (Index p = 0; p < std::ssize(all_chosen); ++p) {
    const auto token = static_cast<std::size_t>(p / k);
    const bool here = p >= mine && p < mine + std::ssize(chosen);
    requests.push_back({scopes[token], all_chosen[static_cast<std::size_t>(p)],
                        by_score ? priority[static_cast<std::size_t>(p)] : 0.0, all_ids[token] * k + p % k,
                        here ? p - mine : -1});
  }
  std::sort(requests.begin(), requests.end(), [](const Request& a, const Request& b) {
    return std::tuple(a.scope, a.expert, -a.score, a.id) < std::tuple(b.scope, b.expert, -b.score, b.id);
  });
  std::sort(scopes.begin(), scopes.end());
  Index taken = 0;  // by the expert within the scope
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Request& request = requests[i];
    const bool first = i == 0 || requests[i - 1].scope != request.scope || requests[i - 1].expert != request.expert;
    taken = first ? 1 : taken + 1;
    if (request.at < 0) continue;
    const auto [begin, end] = std::equal_range(scopes.begin(), scopes.end(), request.scope);
    if (taken > expert_capacity(options.capacity.factor, end - begin, k, options.experts))
      chosen[static_cast<std::size_t>(request.at)] = ~request.expert;
  }
  const Tensor<std::int32_t> marked = on_device(context.pool, chosen);
  Kokkos::deep_copy(Space(), choice.vector(), marked.vector());
}

template void drop_beyond_capacity(const LayerContext<float>&, const MoeOptions&, const PlannedPass<float>&,
                                   const Tensor<std::int64_t>&, const Tensor<float>&, const Tensor<std::int32_t>&);
template void drop_beyond_capacity(const LayerContext<double>&, const MoeOptions&, const PlannedPass<double>&,
                                   const Tensor<std::int64_t>&, const Tensor<double>&, const Tensor<std::int32_t>&);
template void drop_beyond_capacity(const LayerContext<kernels::bf16>&, const MoeOptions&,
                                   const PlannedPass<kernels::bf16>&, const Tensor<std::int64_t>&, const Tensor<float>&,
                                   const Tensor<std::int32_t>&);

}  // namespace fourfold
