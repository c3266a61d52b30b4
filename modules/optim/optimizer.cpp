#include "optim/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/update.hpp"
#include "kernels/vector.hpp"
#include "tensor/number.hpp"

namespace fourfold {

namespace {

template <class T>
kernels::Vector<T> slice(const Tensor<T>& tensor, Index begin, Index size) {
  return kernels::Vector<T>(tensor.data() + begin, size);
}

bool adaptive(OptimizerKind kind) {
  return kind == OptimizerKind::lars || kind == OptimizerKind::lamb;
}

}  // namespace

template <class T>
Optimizer<T>::Optimizer(const OptimizerDeck& deck, const NumericsDeck& numerics, const UpdatePlan& plan,
                        const TensorSums<T>& sums, ParamStore<T>& store, Pool& pool)
    : deck_(deck), numerics_(numerics), plan_(plan), sums_(sums), store_(store), pool_(pool) {
  const bool second = deck.kind == OptimizerKind::adamw || deck.kind == OptimizerKind::lamb;
  if (deck.kind != OptimizerKind::sgd) make_states(pool, first_, "m");
  if (second) make_states(pool, second_, "v");
  if (!kernels::kStoredAsComputed<T>) {
    make_states(pool, masters_, "master");
    copy_to_masters();
  }
  follow_places();
}

template <class T>
void Optimizer<T>::follow_places() {
  states_.clear();
  auto kind = kinds_.begin();
  for (const auto* tensors : {&first_, &second_, &masters_}) {
    if (!tensors->empty()) list_states(*tensors, *kind++);
  }
  make_runs();
}

template <class T>
void Optimizer<T>::make_states(Pool& pool, std::vector<Tensor<A>>& tensors, const char* kind) {
  kinds_.push_back(kind);
  for (std::size_t g = 0; g < store_.groups().size(); ++g) {
    tensors.emplace_back(pool, MemoryTag::optimizer, 1, plan_.group(g).mine.size());
    kernels::fill<A>(Space(), A{0}, tensors.back().vector());
  }
}

template <class T>
void Optimizer<T>::list_states(const std::vector<Tensor<A>>& tensors, const std::string& kind) {
  for (const Param<T>& param : store_.params()) {
    const auto group = static_cast<std::size_t>(param.group);
    const GroupPlan& plan = plan_.group(group);
    const Range range = range_in_part(param, plan);
    const Index begin = range.empty() ? 0 : param.group_offset + range.begin - plan.mine.begin;
    states_.push_back({kind, &param, part_of_shard(param.spec.shard, range), plan.copies,
                       slice(tensors[group], begin, range.size())});
  }
}

// 0 + value: exact.
template <class T>
void Optimizer<T>::copy_to_masters() {
  for (std::size_t g = 0; g < masters_.size(); ++g) {
    const Range mine = plan_.group(g).mine;
    kernels::add<T, A>(Space(), slice(store_.groups()[g].values, mine.begin, mine.size()), masters_[g].vector());
  }
}

template <class T>
void Optimizer<T>::make_runs() {
  runs_.clear();
  std::size_t index = 0;
  for (const Param<T>& param : store_.params()) {
    const std::size_t tensor = sums_.place(index++);
    const auto group = static_cast<std::size_t>(param.group);
    const Range range = range_in_part(param, plan_.group(group));
    if (range.empty()) continue;
    const double decay = param.decays ? deck_.weight_decay : 0.0;
    runs_.push_back(
        {group, param.group_offset + range.begin, range.size(), decay, adaptive(deck_.kind) && param.decays, tensor});
  }
  // Group by group, in the buffers' order; neighbours that are updated alike become one run.
  std::sort(runs_.begin(), runs_.end(),
            [](const Run& a, const Run& b) { return std::pair(a.group, a.begin) < std::pair(b.group, b.begin); });
  std::vector<Run> joined;
  for (const Run& run : runs_) {
    const bool joins = !joined.empty() && !run.adapts && !joined.back().adapts && joined.back().group == run.group &&
                       joined.back().decay == run.decay && joined.back().begin + joined.back().size == run.begin;
    if (joins) {
      joined.back().size += run.size;
    } else {
      joined.push_back(run);
    }
  }
  runs_ = std::move(joined);
}

template <class T>
kernels::Vector<kernels::Acc<T>> Optimizer<T>::in_part(const std::vector<Tensor<A>>& tensors, const Run& run) const {
  return slice(tensors[run.group], run.begin - plan_.group(run.group).mine.begin, run.size);
}

template <class T>
kernels::Vector<kernels::Acc<T>> Optimizer<T>::masters(const Run& run) const {
  if constexpr (kernels::kStoredAsComputed<T>) {
    return slice(store_.groups()[run.group].values, run.begin, run.size);
  } else {
    return in_part(masters_, run);
  }
}

template <class T>
std::vector<double> Optimizer<T>::norms(double scale) const {
  const Space space;
  std::vector<double> both = sums_.compute(2, [&](const Param<T>& param, Range range, double* sums) {
    if (!param.decays || range.empty()) return;
    const auto group = static_cast<std::size_t>(param.group);
    const Run run{group, param.group_offset + range.begin, range.size()};
    sums[0] += kernels::sum_squares<A>(space, masters(run));
    if (deck_.kind == OptimizerKind::lars) {
      sums[1] +=
          kernels::sum_squares<A>(space, kernels::Vector<const A>(param.grad.data() + range.begin, range.size()));
    } else {
      sums[1] += kernels::sum_squares<A>(space, in_part(direction_, run));
    }
  });
  for (double& sum : both) sum = std::sqrt(sum);
  if (deck_.kind == OptimizerKind::lars) {
    for (std::size_t i = 1; i < both.size(); i += 2) both[i] *= scale;
  }
  return both;
}

template <class T>
void Optimizer<T>::update(std::int64_t step, double rate, double scale) {
  store_.finish_gathers();  // of groups that nobody used since the last step: they are about to change
  const Space space;
  const auto gradient = [&](const Run& run) {
    return kernels::Vector<const A>(store_.groups()[run.group].grads.data() + run.begin, run.size);
  };
  const auto options = [&](const Run& run) {
    return kernels::AdamW{rate, deck_.beta1, deck_.beta2, deck_.eps, run.decay, step};
  };
  if (deck_.kind == OptimizerKind::lamb) {
    for (std::size_t g = 0; g < store_.groups().size(); ++g) {
      direction_.emplace_back(pool_, MemoryTag::optimizer, 1, plan_.group(g).mine.size());
    }
    for (const Run& run : runs_) {
      kernels::lamb_direction<A>(space, gradient(run), scale, options(run), masters(run), in_part(first_, run),
                                 in_part(second_, run), in_part(direction_, run));
    }
  }
  const std::vector<double> norms_of = adaptive(deck_.kind) ? norms(scale) : std::vector<double>();

  for (const Run& run : runs_) {
    const kernels::Vector<const A> grad = gradient(run);
    const kernels::Vector<T> values = slice(store_.groups()[run.group].values, run.begin, run.size);
    const kernels::Weights<T> w(masters(run), values);
    const double weight = run.adapts ? norms_of[2 * run.tensor] : 0.0;
    const double other = run.adapts ? norms_of[2 * run.tensor + 1] : 0.0;
    const bool adapt = weight > 0 && other > 0;
    switch (deck_.kind) {
      case OptimizerKind::sgd:
        kernels::sgd_update<T>(space, grad, scale, rate, run.decay, w);
        break;
      case OptimizerKind::momentum:
        kernels::momentum_update<T>(space, grad, scale, rate, deck_.momentum, run.decay, w, in_part(first_, run));
        break;
      case OptimizerKind::adamw:
        kernels::adamw_update<T>(space, grad, scale, options(run), w, in_part(first_, run), in_part(second_, run));
        break;
      case OptimizerKind::lars: {
        const double trust = adapt ? deck_.trust * weight / (other + run.decay * weight) : 1.0;
        kernels::lars_update<T>(space, grad, scale, rate * trust, deck_.momentum, run.decay, w, in_part(first_, run));
        break;
      }
      case OptimizerKind::lamb:
        kernels::step_along<T>(space, adapt ? rate * weight / other : rate, in_part(direction_, run), w);
        break;
    }
    if (numerics_.snap) kernels::snap<T>(space, *numerics_.snap, values);
  }
  direction_.clear();
}

template <class T>
void gather_values(const UpdatePlan& plan, ParamStore<T>& store, ValueGather when) {
  Space().fence();  // the parts are complete
  for (std::size_t g = 0; g < store.groups().size(); ++g) {
    if (!plan.group(g).sharded) continue;
    ParamGroup<T>& group = store.groups()[g];
    *group.arriving = start_gather_parts<Wire<T>>(plan.group(g), wire(group.values.vector()), Phase::update);
  }
  if (when == ValueGather::eager) return store.finish_gathers();
  // A gather in levels goes on where it is waited for, and of two stages one may only come there by the other's work.
  for (ParamGroup<T>& group : store.groups()) {
    if (group.sum_over.tied_stage > 0) group.arriving->wait();
  }
}

template <class T>
std::int64_t Optimizer<T>::update_bytes() const {
  std::int64_t bytes = 0;
  constexpr std::int64_t kWeight = kernels::kStoredAsComputed<T> ? 2 * sizeof(T) : sizeof(T);
  for (const Run& run : runs_) bytes += run.size * (static_cast<std::int64_t>(sizeof(A)) + kWeight);
  for (const State& state : states_) {
    bytes += static_cast<std::int64_t>(state.values.extent(0) * 2 * sizeof(A));
  }
  return bytes;
}

template class Optimizer<float>;
template class Optimizer<double>;
template class Optimizer<kernels::bf16>;
template void gather_values<float>(const UpdatePlan&, ParamStore<float>&, ValueGather);
template void gather_values<double>(const UpdatePlan&, ParamStore<double>&, ValueGather);
template void gather_values<kernels::bf16>(const UpdatePlan&, ParamStore<kernels::bf16>&, ValueGather);

}  // namespace fourfold
