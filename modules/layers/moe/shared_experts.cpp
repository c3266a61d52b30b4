#include "layers/moe/shared_experts.hpp"

#include "kernels/expert_rows.hpp"
#include "kernels/gemm.hpp"
#include "kernels/vector.hpp"
#include "layers/exact.hpp"

namespace fourfold {

template <class T>
SharedExperts<T>::SharedExperts(const LayerContext<T>& context, const std::string& name, const MoeOptions& options,
                                const InitializerFor& init)
    : context_(context),
      feed_forward_(context, name + ".shared", options.activation, options.width, options.shared_hidden, options.bias,
                    init) {
  if (!options.shared_gate) return;
  const Range held = context.part_of(options.width, Axis::col);
  ParamSpec spec;
  spec.name = name + ".shared_gate.weight";
  spec.shard = Shard{{1, options.width}, {{0, 1}, held}, {0, held.size()}};
  spec.sum_over = context.stream_sums();
  spec.owner = spec.sum_over.has(Axis::row) || context.place(Axis::row) == 0;
  spec.init = init(spec.name, options.width, false);
  gate_ = context.store.declare(std::move(spec));
}

template <class T>
kernels::Matrix<const T> SharedExperts<T>::gate() const {
  return kernels::Matrix<const T>(gate_->use().data(), 1, gate_->spec.shard.size());
}

template <class T>
void SharedExperts<T>::add_forward(const RowPlan<T>& rows, const Tensor<T>& x, const Tensor<T>& y, Kept* kept) const {
  const Space space;
  const std::optional<Snap>& snap = context_.options.snap;
  const Tensor<T> out = feed_forward_.forward(rows, x, kept != nullptr ? &kept->feed_forward : nullptr);
  if (gate_ == nullptr) {
    kernels::add<T>(space, out.vector(), y.vector());
    return;
  }
  const Communicator& col = context_.comms.group({Axis::col});
  const Tensor<A> logit(context_.pool, MemoryTag::activations, x.rows(), 1);
  if (snap) check_exact_sum<T>(x.vector(), gate_->use(), x.cols(), 2 * snap->values, col.size());
  kernels::linear_forward<T, A>(space, x.matrix(), gate(), logit.matrix());
  sum_over<A>(col, logit, context_.options.summation, Phase::forward);
  kernels::gate_rows_forward<T>(space, out.matrix(), logit.vector(), y.matrix());
  if (snap) kernels::snap<T>(space, snap->values, y.vector());
  if (kept == nullptr) return;
  kept->x = x;
  kept->y = out;
  kept->logit = logit;
}

template <class T>
void SharedExperts<T>::add_backward_input(const RowPlan<T>& rows, const Tensor<T>& dy, const Tensor<T>& dx,
                                          Kept& kept) const {
  const Space space;
  const std::optional<Snap>& snap = context_.options.snap;
  Tensor<T> dout = dy;
  if (gate_ != nullptr) {
    const Communicator& col = context_.comms.group({Axis::col});
    const Tensor<A> dots(context_.pool, MemoryTag::activations, dy.rows(), 1);
    if (snap) check_exact_sum<T>(kept.y.vector(), dy.vector(), dy.cols(), snap->values + snap->gradients, col.size());
    kernels::gate_rows_dots<T>(space, kept.y.matrix(), dy.matrix(), dots.vector());
    sum_over<A>(col, dots, context_.options.summation, Phase::backward);
    dout = Tensor<T>(context_.pool, MemoryTag::activations, dy.rows(), dy.cols());
    kept.dlogit = Tensor<T>(context_.pool, MemoryTag::activations, dy.rows(), 1);
    kernels::gate_rows_backward<T>(space, kept.logit.vector(), dots.vector(), dy.matrix(), dout.matrix(),
                                   kept.dlogit.vector());
    kept.y = Tensor<T>();
    if (snap) {
      kernels::snap<T>(space, snap->gradients, dout.vector());
      kernels::snap<T>(space, snap->gradients, kept.dlogit.vector());
    }
    const Tensor<T> by_gate(context_.pool, MemoryTag::activations, dx.rows(), dx.cols());
    kernels::linear_backward_input<T, T>(space, kept.dlogit.matrix(), gate(), by_gate.matrix());
    if (snap) kernels::snap<T>(space, snap->gradients, by_gate.vector());
    kernels::add<T>(space, by_gate.vector(), dx.vector());
  }
  const Tensor<T> by_shared = feed_forward_.backward_input(rows, dout, kept.feed_forward);
  kernels::add<T>(space, by_shared.vector(), dx.vector());
}

template <class T>
void SharedExperts<T>::backward_weight(Kept& kept) const {
  feed_forward_.backward_weight(kept.feed_forward);
  if (gate_ == nullptr) return;
  const kernels::Matrix<A> grad(gate_->grad.data(), 1, gate_->spec.shard.size());
  kernels::linear_backward_weight<T>(Space(), kept.dlogit.matrix(), kept.x.matrix(), grad, gate_->next_write());
  kept = Kept{};
}

template class SharedExperts<float>;
template class SharedExperts<double>;
template class SharedExperts<kernels::bf16>;

}  // namespace fourfold
