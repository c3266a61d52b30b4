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

template <class T>
class MlpUnit : public Unit<T> {
 public:
  struct KeptTensors : Kept {
    typename Linear<T>::Kept linear;
    Tensor<T> before;  // the activation's input
    typename Loss<T>::Kept loss;
  };

  MlpUnit(const LayerContext<T>& context, const Deck& deck, std::size_t layer)
      : Unit<T>("mlp." + std::to_string(layer)),
        context_(context),
        first_(layer == 0),
        last_(layer + 2 == deck.model.widths.size()),
        activation_(activation_type(deck.model.activation)),
        inputs_held_(context.part_of(deck.model.widths[0], Axis::col)),
        linear_(make_matrix(context, deck, layer)) {
    if (last_) {
      loss_ = std::make_unique<Loss<T>>(
          context, deck.model.loss == LossKind::cross_entropy ? LossType::cross_entropy : LossType::squared_error,
          deck.model.widths.back(), orientation_of(layer).out);
    }
  }

  std::unique_ptr<Kept> forward(const PlannedPass<T>& pass, Tensor<T>& x, LossSum& loss) override {
    auto kept = pass.training ? std::make_unique<KeptTensors>() : nullptr;
    if (first_) x = held_inputs(pass.batch->inputs);
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
  Tensor<T> held_inputs(const Tensor<T>& inputs) const {
    if (inputs.cols() == inputs_held_.size()) return inputs;
    Tensor<T> mine(context_.pool, MemoryTag::activations, inputs.rows(), inputs_held_.size());
    kernels::copy_columns<T>(Space(), inputs.matrix(), inputs_held_.begin, inputs_held_.size(), mine.matrix(), 0);
    return mine;
  }

  LayerContext<T> context_;
  bool first_, last_;
  ActivationType activation_;
  Range inputs_held_;
  Linear<T> linear_;
  std::unique_ptr<Loss<T>> loss_;
};

}  // namespace

template <class T>
std::vector<std::unique_ptr<Unit<T>>> make_mlp(const LayerContext<T>& context, const Deck& deck) {
  std::vector<std::unique_ptr<Unit<T>>> units;
  for (std::size_t layer = 0; layer + 1 < deck.model.widths.size(); ++layer) {
    units.push_back(std::make_unique<MlpUnit<T>>(context, deck, layer));
  }
  return units;
}

template std::vector<std::unique_ptr<Unit<float>>> make_mlp(const LayerContext<float>&, const Deck&);
template std::vector<std::unique_ptr<Unit<double>>> make_mlp(const LayerContext<double>&, const Deck&);
template std::vector<std::unique_ptr<Unit<kernels::bf16>>> make_mlp(const LayerContext<kernels::bf16>&, const Deck&);

}  // namespace fourfold
