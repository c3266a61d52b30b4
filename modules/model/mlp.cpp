// MLP: matrices with an activation between them; neighbouring matrices swap the axes that cut them.
#include "kernels/vector.hpp"
#include "layers/feed_forward.hpp"
#include "layers/linear.hpp"
#include "layers/loss.hpp"
#include "model/initializers.hpp"
#include "model/names.hpp"
#include "model/units.hpp"

namespace fourfold {

namespace {

Orientation orientation_of(std::size_t layer) {
  return layer % 2 == 0 ? Orientation{} : Orientation{}.swapped();
}

template <class T>
Linear<T> make_matrix(const LayerContext<T>& context, const Deck& deck, std::size_t layer) {
  const ModelDeck& model = deck.model;
  const std::string name = "mlp." + std::to_string(layer) + ".weight";
  const Orientation orientation = orientation_of(layer);
  const bool last = layer + 2 == model.widths.size();
  Initializer init = last && model.init.zero_head
                         ? constant_initializer(0)
                         : make_initializer(model, deck.run.seed, name, model.widths[layer], false);
  return Linear<T>(context, {even_segment(context, name, model.widths[layer + 1], orientation.out, std::move(init))},
                   model.widths[layer], {orientation, model.mlp_bias, layer > 0});
}

}  // namespace

template <class T>
Tensor<T> held_inputs(const LayerContext<T>& context, const Tensor<T>& inputs) {
  const Range held = context.part_of(inputs.cols(), Axis::col);
  if (inputs.cols() == held.size()) return inputs;
  Tensor<T> mine(context.pool, MemoryTag::activations, inputs.rows(), held.size());
  kernels::copy_columns<T>(Space(), inputs.matrix(), held.begin, held.size(), mine.matrix(), 0);
  return mine;
}

template Tensor<float> held_inputs(const LayerContext<float>&, const Tensor<float>&);
template Tensor<double> held_inputs(const LayerContext<double>&, const Tensor<double>&);
template Tensor<kernels::bf16> held_inputs(const LayerContext<kernels::bf16>&, const Tensor<kernels::bf16>&);

namespace {

template <class T>
class MlpUnit : public Unit<T> {
 public:
  struct KeptTensors : Kept {
    typename Linear<T>::Kept linear;
    Tensor<T> before;  // the activation's input
    typename Loss<T>::Kept loss;
    void hold(HeldBlocks& blocks) override {
      linear.hold(blocks);
      before.hold(blocks);
      loss.hold(blocks);
    }
  };

  MlpUnit(const LayerContext<T>& context, const Deck& deck, std::size_t layer)
      : Unit<T>("mlp." + std::to_string(layer)),
        context_(context),
        first_(layer == 0),
        last_(layer + 2 == deck.model.widths.size()),
        activation_(activation_type(deck.model.activation)),
        linear_(make_matrix(context, deck, layer)) {
    if (last_) {
      loss_ = std::make_unique<Loss<T>>(
          context, deck.model.loss == LossKind::cross_entropy ? LossType::cross_entropy : LossType::squared_error,
          deck.model.widths.back(), orientation_of(layer).out);
    }
  }

  Index input_cols() const override { return first_ ? 0 : linear_.weight()->cols(); }

  std::unique_ptr<Kept> forward(const PlannedPass<T>& pass, Tensor<T>& x, LossSum& loss) override {
    auto kept = pass.keeps() ? std::make_unique<KeptTensors>() : nullptr;
    if (first_) x = held_inputs(context_, pass.batch->inputs);
    x = linear_.forward(x, kept ? &kept->linear : nullptr);
    if (last_) {
      loss = loss_->forward(pass, x, kept ? &kept->loss : nullptr);
      x = Tensor<T>();
    } else {
      if (kept) kept->before = x;
      x = activate(context_.pool, activation_, x);
    }
    return kept;
  }

  void backward_input(const PlannedPass<T>& pass, Kept& base, Tensor<T>& dx) override {
    auto& kept = static_cast<KeptTensors&>(base);
    const Tensor<T> dy =
        last_ ? loss_->backward(pass, kept.loss) : activate_backward(context_.pool, activation_, kept.before, dx);
    kept.before = Tensor<T>();
    if (first_) {
      linear_.keep_output_gradient(dy, kept.linear);
      dx = Tensor<T>();
    } else {
      dx = linear_.backward_input(dy, kept.linear);
    }
  }

  void backward_weight(const PlannedPass<T>&, Kept& base) override {
    linear_.backward_weight(static_cast<KeptTensors&>(base).linear);
  }

 private:
  LayerContext<T> context_;
  bool first_, last_;
  ActivationType activation_;
  Linear<T> linear_;
  std::unique_ptr<Loss<T>> loss_;
};

}  // namespace

template <class T>
std::unique_ptr<Unit<T>> make_mlp_unit(const LayerContext<T>& context, const Deck& deck, Index layer) {
  return std::make_unique<MlpUnit<T>>(context, deck, static_cast<std::size_t>(layer));
}

template std::unique_ptr<Unit<float>> make_mlp_unit(const LayerContext<float>&, const Deck&, Index);
template std::unique_ptr<Unit<double>> make_mlp_unit(const LayerContext<double>&, const Deck&, Index);
template std::unique_ptr<Unit<kernels::bf16>> make_mlp_unit(const LayerContext<kernels::bf16>&, const Deck&, Index);

}  // namespace fourfold
