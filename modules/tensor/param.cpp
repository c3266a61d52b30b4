#include "tensor/param.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <unordered_set>

#include "base/error.hpp"
#include "kernels/vector.hpp"
#include "tensor/number.hpp"

namespace fourfold {

namespace {

// The elements `range` of the shard, run by run: elements that follow each other here and in the logical tensor.
template <class T>
void initialize(const ParamSpec& spec, Range range, T* values) {
  constexpr Index kMost = 4096;
  const Shard& shard = spec.shard;
  const Index run = shard.box.empty() ? 1 : shard.box.back().size();  // inside the box, rows of its last dim
  std::vector<double> block(static_cast<std::size_t>(std::min(kMost, range.size())));
  for (Index i = range.begin; i < range.end;) {
    const Index left = run - (shard.flat.begin + i) % run;  // to the end of the row
    const Index count = std::min({left, range.end - i, kMost});
    const std::span<double> part(block.data(), static_cast<std::size_t>(count));
    spec.init(shard.global_index(i), part);
    for (Index j = 0; j < count; ++j) *values++ = static_cast<T>(block[static_cast<std::size_t>(j)]);
    i += count;
  }
}

// Fills the group's values. `sharers`: the ranks with the same values, each of which makes a part of them; or null.
template <class T>
void initialize(ParamGroup<T>& group, const Communicator* sharers) {
  const Range mine = sharers == nullptr ? Range{0, group.size} : part(group.size, sharers->size(), sharers->rank());
  for (const Param<T>* param : group.params) {
    const Index begin = param->group_offset;
    const Range range{std::clamp(mine.begin - begin, Index{0}, param->spec.shard.size()),
                      std::clamp(mine.end - begin, Index{0}, param->spec.shard.size())};
    const auto values = Kokkos::subview(param->value, std::pair(range.begin, range.end));
    auto host = Kokkos::create_mirror_view(values);
    initialize(param->spec, range, host.data());
    Kokkos::deep_copy(values, host);
  }
  if (sharers == nullptr) return;
  std::vector<std::int64_t> sizes;
  for (int r = 0; r < sharers->size(); ++r) sizes.push_back(part(group.size, sharers->size(), r).size());
  Space().fence();
  const std::span<Wire<T>> all = wire(group.values.data(), group.size);
  const auto own = all.subspan(static_cast<std::size_t>(mine.begin), static_cast<std::size_t>(mine.size()));
  all_gather<Wire<T>>(*sharers, own, all, sizes, Phase::setup);
}

}  // namespace

template <class T>
void ParamStore<T>::begin(Index unit, int chunk) {
  unit_ = unit;
  chunk_ = chunk;
}

template <class T>
Param<T>* ParamStore<T>::declare(ParamSpec&& spec) {
  Param<T> param;
  param.decays = spec.shard.shape.size() >= 2;
  param.spec = std::move(spec);
  param.unit = unit_;
  chunks_.push_back(chunk_);
  params_.push_back(std::move(param));
  return &params_.back();
}

template <class T>
void ParamStore<T>::allocate(Pool& pool, const PartsOfGroup& parts, const SharersOfGroup& sharers) {
  FOURFOLD_ASSERT(groups_.empty(), "parameters are allocated once");
  std::unordered_set<std::string> names;
  for (const Param<T>& param : params_) {
    const bool fresh = names.insert(param.spec.name).second;
    FOURFOLD_ASSERT(fresh, "twice: " + param.spec.name);
  }
  std::map<std::pair<int, GroupKey>, Index> group_of;
  std::vector<Index> sizes;
  auto chunk = chunks_.begin();
  for (Param<T>& param : params_) {
    const auto [found, fresh] = group_of.try_emplace({*chunk, param.spec.sum_over}, static_cast<Index>(groups_.size()));
    if (fresh) {
      groups_.emplace_back();
      groups_.back().sum_over = param.spec.sum_over;
      groups_.back().chunk = *chunk;
      sizes.push_back(0);
    }
    param.group = found->second;
    param.group_offset = sizes[static_cast<std::size_t>(param.group)];
    sizes[static_cast<std::size_t>(param.group)] += param.spec.shard.size();
    ++chunk;
  }
  const Space space;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    ParamGroup<T>& group = groups_[g];
    const Index cut = parts ? parts(group.sum_over) : 1;
    const Index padded = (sizes[g] + cut - 1) / cut * cut;
    group.size = sizes[g];
    group.values = Tensor<T>(pool, MemoryTag::parameters, 1, padded);
    group.grads = Tensor<kernels::Acc<T>>(pool, MemoryTag::gradients, 1, padded);
    group.arriving = std::make_shared<Pending>();
    kernels::fill<T>(space, T{0}, kernels::Vector<T>(group.values.data() + group.size, padded - group.size));
  }
  for (Param<T>& param : params_) {
    ParamGroup<T>& group = groups_[static_cast<std::size_t>(param.group)];
    const Index size = param.spec.shard.size();
    group.params.push_back(&param);
    param.arriving = group.arriving;
    param.value = kernels::Vector<T>(group.values.data() + param.group_offset, size);
    param.grad = kernels::Vector<kernels::Acc<T>>(group.grads.data() + param.group_offset, size);
  }
  for (ParamGroup<T>& group : groups_) {
    initialize(group, sharers && !group.sum_over.empty() ? &sharers(group.sum_over) : nullptr);
  }
  for (ParamGroup<T>& group : groups_) {
    kernels::fill<kernels::Acc<T>>(space, kernels::Acc<T>{0}, group.grads.vector());
  }
}

template <class T>
void ParamStore<T>::restart_gradients() {
  for (Param<T>& param : params_) param.grad_is_old = true;
}

template <class T>
void ParamStore<T>::finish_gradients(ParamGroup<T>& group) {
  for (Param<T>* param : group.params) {
    if (param->next_write() == kernels::Write::overwrite) {
      kernels::fill<kernels::Acc<T>>(Space(), kernels::Acc<T>{0}, param->grad);
    }
  }
}

template <class T>
void ParamStore<T>::finish_gathers() {
  for (ParamGroup<T>& group : groups_) group.arriving->wait();
}

template class ParamStore<float>;
template class ParamStore<double>;
template class ParamStore<kernels::bf16>;

}  // namespace fourfold
