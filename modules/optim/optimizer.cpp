#include "optim/optimizer.hpp"

#include "kernels/update.hpp"
#include "kernels/vector.hpp"

namespace fourfold {

namespace {

template <class T>
kernels::Vector<T> slice(const Tensor<T>& tensor, Index begin, Index size) {
  return kernels::Vector<T>(tensor.data() + begin, size);
}

}  // namespace

template <class T>
Optimizer<T>::Optimizer(const OptimizerDeck& deck, const NumericsDeck& numerics, ParamStore<T>& store, Pool& pool)
    : deck_(deck), numerics_(numerics), store_(store) {
  const Space space;
  const auto make = [&](std::vector<Tensor<T>>& tensors, const char* kind) {
    for (const ParamGroup<T>& group : store.groups()) {
      tensors.emplace_back(pool, MemoryTag::optimizer, 1, group.values.size());
      kernels::fill<T>(space, T{0}, tensors.back().vector());
    }
    for (const Param<T>& param : store.params()) {
      const Tensor<T>& tensor = tensors[static_cast<std::size_t>(param.group)];
      const auto size = static_cast<Index>(param.value.extent(0));
      states_.push_back({kind, &param, slice(tensor, param.group_offset, size)});
    }
  };
  if (deck.kind != OptimizerKind::sgd) make(first_, "m");
  if (deck.kind == OptimizerKind::adamw) make(second_, "v");

  std::size_t index = 0;
  for (const ParamGroup<T>& group : store.groups()) {
    for (const Param<T>* param : group.params) {
      const auto size = static_cast<Index>(param->value.extent(0));
      const double decay = param->decays ? deck.weight_decay : 0.0;
      const bool joins = !runs_.empty() && runs_.back().group == index && runs_.back().decay == decay &&
                         runs_.back().begin + runs_.back().size == param->group_offset;
      if (joins) {
        runs_.back().size += size;
      } else {
        runs_.push_back({index, param->group_offset, size, decay});
      }
    }
    ++index;
  }
}

template <class T>
void Optimizer<T>::update(std::int64_t step, double rate, double scale) {
  using A = kernels::Acc<T>;
  const Space space;
  for (const Run& run : runs_) {
    ParamGroup<T>& group = store_.groups()[run.group];
    const kernels::Vector<const A> grad(group.grads.data() + run.begin, run.size);
    const kernels::Vector<T> w = slice(group.values, run.begin, run.size);
    switch (deck_.kind) {
      case OptimizerKind::sgd:
        kernels::sgd_update<T>(space, grad, scale, rate, run.decay, w);
        break;
      case OptimizerKind::momentum:
        kernels::momentum_update<T>(space, grad, scale, rate, deck_.momentum, run.decay, w,
                                    slice(first_[run.group], run.begin, run.size));
        break;
      case OptimizerKind::adamw:
        kernels::adamw_update<T>(space, grad, scale, {rate, deck_.beta1, deck_.beta2, deck_.eps, run.decay, step}, w,
                                 slice(first_[run.group], run.begin, run.size),
                                 slice(second_[run.group], run.begin, run.size));
        break;
    }
    if (numerics_.snap) kernels::snap<T>(space, *numerics_.snap, w);
  }
}

template <class T>
std::int64_t Optimizer<T>::update_bytes() const {
  std::int64_t bytes = 0;
  for (const Run& run : runs_) bytes += run.size * static_cast<std::int64_t>(sizeof(kernels::Acc<T>) + 2 * sizeof(T));
  for (const State& state : states_) {
    bytes += static_cast<std::int64_t>(state.values.extent(0) * 2 * sizeof(T));
  }
  return bytes;
}

template class Optimizer<float>;
template class Optimizer<double>;

}  // namespace fourfold
