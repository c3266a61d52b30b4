#include "layers/moe/moe.hpp"

#include <numeric>

#include "base/error.hpp"
#include "kernels/expert_rows.hpp"
#include "kernels/vector.hpp"
#include "layers/moe/dispatcher.hpp"
#include "layers/moe/door.hpp"
#include "layers/moe/experts.hpp"
#include "layers/moe/router.hpp"
#include "layers/moe/shared_experts.hpp"

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
        experts(context, name + ".experts", options, places, init) {
    FOURFOLD_ASSERT(!(options.fused_weight && options.bias), "weights are fused only where experts have no bias");
    if (options.shared_hidden > 0) shared = std::make_unique<SharedExperts<T>>(context, name, options, init);
  }

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
  std::unique_ptr<SharedExperts<T>> shared;
};

template <class T>
struct MoeLayer<T>::Kept::Tensors {
  typename Door<T>::Plan door;
  typename Router<T>::Routing routing;
  typename Dispatcher<T>::Plan plan;
  Tensor<T> out;  // pairs x D: what the experts made of them; not where weights are fused
  typename Experts<T>::Kept experts;
  typename SharedExperts<T>::Kept shared;
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
  tensors_->door.hold(blocks);
  tensors_->routing.hold(blocks);
  tensors_->plan.hold(blocks);
  tensors_->out.hold(blocks);
  tensors_->experts.hold(blocks);
  tensors_->shared.hold(blocks);
}

template <class T>
MoeLayer<T>::MoeLayer(const LayerContext<T>& context, const std::string& name, const MoeOptions& options,
                      const InitializerFor& init)
    : parts_(std::make_unique<Parts>(context, name, options, init)) {}
template <class T>
MoeLayer<T>::~MoeLayer() = default;

template <class T>
Tensor<T> MoeLayer<T>::forward(const PlannedPass<T>& pass, const Tensor<T>& x, Kept* kept) {
  using A = kernels::Acc<T>;
  Parts& p = *parts_;
  auto keeps = kept != nullptr ? std::make_unique<typename Kept::Tensors>() : nullptr;
  const typename Door<T>::Plan door = p.door.plan(pass);
  const Tensor<T> tokens = p.door.in(door, x, Phase::forward);
  const typename Router<T>::Routing routing = p.router.route(pass, door, tokens, kept != nullptr);
  const typename Dispatcher<T>::Plan plan = p.dispatcher.plan(routing.choice, door.ids, Phase::forward);
  if (routing.fresh) p.router.count_arrivals(plan.arrivals());
  const Tensor<T> rows = p.dispatcher.in(plan, tokens, {}, Phase::forward);
  const bool fused = p.options.fused_weight;
  const Tensor<A> weights = fused ? p.dispatcher.weights_in(plan, routing.weights, Phase::forward) : Tensor<A>();
  const Tensor<A> partial = p.experts.forward(plan.expert_begin, rows, weights, keeps ? &keeps->experts : nullptr);
  const Tensor<T> out = p.dispatcher.out(plan, partial, p.value_bits(), Phase::forward);
  const Tensor<T> combined = p.combined(plan, out, fused ? Tensor<A>() : routing.weights, {});
  Parts::snap(p.value_bits(), combined);
  Tensor<T> y = p.door.out(door, combined, Phase::forward);
  if (p.shared) p.shared->add_forward(pass.rows, x, y, keeps ? &keeps->shared : nullptr);
  if (keeps) {
    keeps->door = door;
    keeps->routing = routing;
    keeps->plan = plan;
    if (!fused) keeps->out = out;
    kept->tensors_ = std::move(keeps);
  }
  return y;
}

template <class T>
Tensor<T> MoeLayer<T>::backward_input(const PlannedPass<T>& pass, const Tensor<T>& dy, Kept& kept) {
  using A = kernels::Acc<T>;
  Parts& p = *parts_;
  typename Kept::Tensors& had = *kept.tensors_;
  const bool fused = p.options.fused_weight;
  const Tensor<T> tokens = p.door.in(had.door, dy, Phase::backward);
  Tensor<A> dweights;
  Tensor<A> weights;
  if (fused) {
    weights = p.dispatcher.weights_in(had.plan, had.routing.weights, Phase::backward);
  } else {
    dweights = Tensor<A>(p.context.pool, MemoryTag::activations, tokens.rows(), p.options.top_k);
    kernels::combine_pairs_backward<T>(Space(), had.out.matrix(), had.plan.position.matrix(), tokens.matrix(),
                                       dweights.matrix());
    had.out = Tensor<T>();
  }
  const Tensor<T> dout = p.dispatcher.in(had.plan, tokens, fused ? Tensor<A>() : had.routing.weights, Phase::backward);
  Parts::snap(p.gradient_bits(), dout);
  Tensor<A> by_row;
  const Tensor<A> partial = p.experts.backward_input(dout, weights, had.experts, &by_row);
  if (fused) dweights = p.dispatcher.weights_out(had.plan, by_row, Phase::backward);
  const Tensor<T> rows = p.dispatcher.out(had.plan, partial, p.gradient_bits(), Phase::backward);
  const Tensor<A> by_router = p.router.backward_input(pass, had.door, dweights, had.routing);
  const Tensor<T> combined = p.combined(had.plan, rows, {}, by_router);
  Parts::snap(p.gradient_bits(), combined);
  Tensor<T> dx = p.door.out(had.door, combined, Phase::backward);
  if (p.shared) p.shared->add_backward_input(pass.rows, dy, dx, had.shared);
  return dx;
}

template <class T>
void MoeLayer<T>::backward_weight(Kept& kept) {
  Parts& p = *parts_;
  if (p.shared) p.shared->backward_weight(kept.tensors_->shared);
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

template <class T>
const std::vector<double>& MoeLayer<T>::selection_bias() const {
  return parts_->router.selection_bias();
}

template <class T>
void MoeLayer<T>::set_selection_bias(std::vector<double> bias) {
  parts_->router.set_selection_bias(std::move(bias));
}

template <class T>
void MoeLayer<T>::update_selection_bias(const std::vector<double>& pairs) {
  std::vector<double> bias = selection_bias();
  const double experts = static_cast<double>(pairs.size());
  const double mean = std::accumulate(pairs.begin(), pairs.end(), 0.0) / experts;
  const auto sign = [mean](double load) { return load < mean ? 1.0 : load > mean ? -1.0 : 0.0; };
  double signs = 0;
  for (const double load : pairs) signs += sign(load);
  for (std::size_t e = 0; e < bias.size(); ++e)
    bias[e] += options().balance.bias_rate * (sign(pairs[e]) - signs / experts);
  set_selection_bias(std::move(bias));
}

template <class T>
const ExpertPlaces& MoeLayer<T>::places() const {
  return parts_->places;
}

template <class T>
std::vector<Param<T>*> MoeLayer<T>::expert_params(Index expert) const {
  return parts_->experts.params(expert);
}

template <class T>
void MoeLayer<T>::swap_experts(Index a, Index b) {
  const std::vector<Param<T>*> of_a = expert_params(a);
  const std::vector<Param<T>*> of_b = expert_params(b);
  for (std::size_t i = 0; i < of_a.size(); ++i) swap_places(*of_a[i], *of_b[i]);
  parts_->places.swap(a, b);
}

template class MoeLayer<float>;
template class MoeLayer<double>;
template class MoeLayer<kernels::bf16>;

}  // namespace fourfold
