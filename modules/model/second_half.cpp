#include "model/second_half.hpp"

#include "model/held.hpp"
#include "model/initializers.hpp"
#include "model/moe_options.hpp"
#include "model/names.hpp"

namespace fourfold {

template <class T>
SecondHalf<T>::SecondHalf(const LayerContext<T>& context, const Deck& deck, Index layer, const std::string& block,
                          bool input_gradient) {
  const ModelDeck& model = deck.model;
  const InitializerFor init = [&deck](const std::string& name, Index columns, bool residual) {
    return make_initializer(deck.model, deck.run.seed, name, columns, residual);
  };
  if (has_experts(model, layer)) {
    moe_ = std::make_unique<MoeLayer<T>>(context, block + ".moe", moe_options(model), init);
    return;
  }
  const bool stack = model.kind == ModelKind::residual;
  const ActivationType type = stack ? activation_type(model.activation) : activation_type(model.ffn.kind);
  const bool bias = stack ? model.mlp_bias : model.bias == BiasKind::all;
  dense_ = std::make_unique<FeedForward<T>>(context, block + ".ffn", type, model.hidden, model.ffn.hidden, bias, init,
                                            input_gradient);
}

template <class T>
Tensor<T> SecondHalf<T>::forward(const PlannedPass<T>& pass, const Tensor<T>& x, Kept* kept) const {
  if (moe_) return moe_->forward(pass, x, kept ? &kept->moe : nullptr);
  return dense_->forward(pass.rows, x, kept ? &kept->dense : nullptr);
}

template <class T>
Tensor<T> SecondHalf<T>::backward_input(const PlannedPass<T>& pass, const Tensor<T>& dy, Kept& kept) const {
  return moe_ ? moe_->backward_input(pass, dy, kept.moe) : dense_->backward_input(pass.rows, dy, kept.dense);
}

template <class T>
void SecondHalf<T>::backward_weight(Kept& kept) const {
  if (moe_) return moe_->backward_weight(kept.moe);
  dense_->backward_weight(kept.dense);
}

template class SecondHalf<float>;
template class SecondHalf<double>;
template class SecondHalf<kernels::bf16>;

}  // namespace fourfold
