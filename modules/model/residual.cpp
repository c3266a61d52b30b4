// Residual stack:  h = x;  h += down(act(up h)), or a mixture of experts of h, block by block;  the loss of h against
// the values.
#include "kernels/vector.hpp"
#include "layers/loss.hpp"
#include "model/second_half.hpp"
#include "model/units.hpp"

namespace fourfold {

namespace {

template <class T>
class ResidualUnit : public Unit<T> {
 public:
  struct KeptTensors : Kept {
    typename SecondHalf<T>::Kept ffn;
    typename Loss<T>::Kept loss;
    void hold(HeldBlocks& blocks) override {
      ffn.hold(blocks);
      loss.hold(blocks);
    }
  };

  ResidualUnit(const LayerContext<T>& context, const Deck& deck, Index layer)
      : Unit<T>("layers." + std::to_string(layer)),
        context_(context),
        first_(layer == 0),
        ffn_(context, deck, layer, this->name(), layer > 0) {
    if (layer + 1 < deck.model.layers) return;
    loss_ = std::make_unique<Loss<T>>(
        context, deck.model.loss == LossKind::cross_entropy ? LossType::cross_entropy : LossType::squared_error,
        deck.model.hidden, Axis::col);
  }

  Index input_cols() const override { return first_ ? 0 : ffn_.input_cols(); }

  std::unique_ptr<Kept> forward(const PlannedPass<T>& pass, Tensor<T>& x, LossSum& loss) override {
    auto kept = pass.keeps() ? std::make_unique<KeptTensors>() : nullptr;
    const Tensor<T> h = first_ ? held_inputs(context_, pass.batch->inputs) : x;
    x = ffn_.forward(pass, h, kept ? &kept->ffn : nullptr);
    kernels::add<T>(Space(), h.vector(), x.vector());
    if (loss_) {
      loss = loss_->forward(pass, x, kept ? &kept->loss : nullptr);
      x = Tensor<T>();
    }
    return kept;
  }

  MoeLayer<T>* experts() override { return ffn_.experts(); }

  void backward_input(const PlannedPass<T>& pass, Kept& base, Tensor<T>& dx) override {
    auto& kept = static_cast<KeptTensors&>(base);
    const Tensor<T> dy = loss_ ? loss_->backward(pass, kept.loss) : dx;
    dx = ffn_.backward_input(pass, dy, kept.ffn);
    if (first_) {
      dx = Tensor<T>();
    } else {
      kernels::add<T>(Space(), dy.vector(), dx.vector());
    }
  }

  void backward_weight(const PlannedPass<T>&, Kept& base) override {
    ffn_.backward_weight(static_cast<KeptTensors&>(base).ffn);
  }

 private:
  LayerContext<T> context_;
  bool first_;
  SecondHalf<T> ffn_;
  std::unique_ptr<Loss<T>> loss_;
};

}  // namespace

template <class T>
std::unique_ptr<Unit<T>> make_residual_unit(const LayerContext<T>& context, const Deck& deck, Index layer) {
  return std::make_unique<ResidualUnit<T>>(context, deck, layer);
}

template std::unique_ptr<Unit<float>> make_residual_unit(const LayerContext<float>&, const Deck&, Index);
template std::unique_ptr<Unit<double>> make_residual_unit(const LayerContext<double>&, const Deck&, Index);
template std::unique_ptr<Unit<kernels::bf16>> make_residual_unit(const LayerContext<kernels::bf16>&, const Deck&,
                                                                 Index);

}  // namespace fourfold
