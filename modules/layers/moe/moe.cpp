#include "layers/moe/moe.hpp"

#include "kernels/expert_rows.hpp"
#include "kernels/vector.hpp"
#include "layers/moe/dispatcher.hpp"
#include "layers/moe/door.hpp"
#include "layers/moe/experts.hpp"
#include "layers/moe/router.hpp"

namespace fourfold {

template <class T>
struct MoeLayer<T>::Parts {
  Parts(const LayerContext<T>& layer_context, const std::string& name, const MoeOptions& moe_options,
        const InitializerFor& init)
      : context(layer_context),
        options(moe_options),
        places(options.experts, context.extent(Axis::expert)),
        door(context, options.width),
        router(context, name + ".router", options, init),
        dispatcher(context, options.dispatcher, options.width, places),
        experts(context, name + ".experts", options, places, init) {}

  std::optional<int> value_bits() const {
    return context.options.snap ? std::optional(context.options.snap->values) : std::nullopt;
  }
  std::optional<int> gradient_bits() const {
    return context.options.snap ? std::optional(context.options.snap->gradients) : std::nullopt;
  }
  static void snap(std::optional<int> bits, const Tensor<T>& x) {
    if (bits) kernels::snap<T>(Space(), *bits, x.vector());
  }
  // y(t) = base(t) + the sum of its pairs' rows, times their weights.
  Tensor<T> combined(const typename Dispatcher<T>::Plan& plan, const Tensor<T>& rows,
                     const Tensor<kernels::Acc<T>>& weights, const Tensor<kernels::Acc<T>>& base) const {
    Tensor<T> y(context.pool, MemoryTag::activations, plan.position.rows(), options.width);
    kernels::combine_pairs_forward<T>(Space(), rows.matrix(), plan.position.matrix(), weights.vector(), base.matrix(),
                                      y.matrix());
    return y;
  }

  LayerContext<T> context;
  MoeOptions options;
  ExpertPlaces places;
  Door<T> door;
  Router<T> router;
  Dispatcher<T> dispatcher;
  Experts<T> experts;
};

template <class T>
struct MoeLayer<T>::Kept::Tensors {
  typename Door<T>::Plan door;
  typename Router<T>::Routing routing;
  typename Dispatcher<T>::Plan plan;
  Tensor<T> out;  // pairs x D: what the experts made of them
  typename Experts<T>::Kept experts;
};

template <class T>
MoeLayer<T>::Kept::Kept() = default;
template <class T>
MoeLayer<T>::Kept::Kept(Kept&&) noexcept = default;
template <class T>
typename MoeLayer<T>::Kept& MoeLayer<T>::Kept::operator=(Kept&&) noexcept = default;
template <class T>
MoeLayer<T>::Kept::~Kept() = default;

template <class T>
void MoeLayer<T>::Kept::hold(HeldBlocks& blocks) {
  if (!tensors_) return;
  tensors_->routing.hold(blocks);
  tensors_->plan.hold(blocks);
  tensors_->out.hold(blocks);
  tensors_->experts.hold(blocks);
}

template <class T>
MoeLayer<T>::MoeLayer(const LayerContext<T>& context, const std::string& name, const MoeOptions& options,
                      const InitializerFor& init)
    : parts_(std::make_unique<Parts>(context, name, options, init)) {}
template <class T>
MoeLayer<T>::~MoeLayer() = default;

template <class T>
Tensor<T> MoeLayer<T>::forward(const PlannedPass<T>& pass, const Tensor<T>& x, Kept* kept) {
  Parts& p = *parts_;
  const typename Door<T>::Plan door = p.door.plan(pass);
  const Tensor<T> tokens = p.door.in(door, x, Phase::forward);
  const typename Router<T>::Routing routing = p.router.route(pass, door, tokens, kept != nullptr);
  const typename Dispatcher<T>::Plan plan = p.dispatcher.plan(routing.choice, door.ids, Phase::forward);
  if (routing.fresh) p.router.count_arrivals(plan.arrivals());
  const Tensor<T> rows = p.dispatcher.in(plan, tokens, {}, Phase::forward);
  typename Experts<T>::Kept experts;
  const Tensor<kernels::Acc<T>> partial =
      p.experts.forward(plan.expert_begin, rows, kept != nullptr ? &experts : nullptr);
  const Tensor<T> out = p.dispatcher.out(plan, partial, p.value_bits(), Phase::forward);
  const Tensor<T> y = p.combined(plan, out, routing.weights, {});
  Parts::snap(p.value_bits(), y);
  if (kept != nullptr) {
    kept->tensors_ =
        std::make_unique<typename Kept::Tensors>(typename Kept::Tensors{door, routing, plan, out, std::move(experts)});
  }
  return p.door.out(door, y, Phase::forward);
}

template <class T>
Tensor<T> MoeLayer<T>::backward_input(const PlannedPass<T>& pass, const Tensor<T>& dy, Kept& kept) {
  using A = kernels::Acc<T>;
  Parts& p = *parts_;
  typename Kept::Tensors& had = *kept.tensors_;
  const Tensor<T> tokens = p.door.in(had.door, dy, Phase::backward);
  const Tensor<A> dweights(p.context.pool, MemoryTag::activations, tokens.rows(), p.options.top_k);
  kernels::combine_pairs_backward<T>(Space(), had.out.matrix(), had.plan.position.matrix(), tokens.matrix(),
                                     dweights.matrix());
  had.out = Tensor<T>();
  const Tensor<T> dout = p.dispatcher.in(had.plan, tokens, had.routing.weights, Phase::backward);
  Parts::snap(p.gradient_bits(), dout);
  const Tensor<A> partial = p.experts.backward_input(dout, had.experts);
  const Tensor<T> rows = p.dispatcher.out(had.plan, partial, p.gradient_bits(), Phase::backward);
  const Tensor<A> by_router = p.router.backward_input(pass, had.door, dweights, had.routing);
  const Tensor<T> dx = p.combined(had.plan, rows, {}, by_router);
  Parts::snap(p.gradient_bits(), dx);
  return p.door.out(had.door, dx, Phase::backward);
}

template <class T>
void MoeLayer<T>::backward_weight(Kept& kept) {
  Parts& p = *parts_;
  p.experts.backward_weight(kept.tensors_->experts);
  p.router.backward_weight(kept.tensors_->routing);
  kept.tensors_.reset();
}

template <class T>
Index MoeLayer<T>::input_cols() const {
  return parts_->context.part_of(parts_->options.width, Axis::col).size();
}

template <class T>
const MoeOptions& MoeLayer<T>::options() const {
  return parts_->options;
}

template <class T>
MoeCounts MoeLayer<T>::take_counts() {
  return parts_->router.take_counts();
}

template class MoeLayer<float>;
template class MoeLayer<double>;
template class MoeLayer<kernels::bf16>;

}  // namespace fourfold
