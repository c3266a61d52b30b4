// Losses over outputs whose columns (vocabulary, classes, regression outputs) are cut over one axis. Sums over the cut
// are made here; the loss itself is left as a sum over rows (divided once, by the caller, by the step's target count).
#pragma once

#include "layers/context.hpp"
#include "layers/pass.hpp"

namespace fourfold {

enum class LossType {
  cross_entropy,         // against ids or classes
  squared_error_onehot,  // 1/2 |y - onehot(id)|^2
  squared_error          // 1/2 |y - values|^2
};

template <class T>
class Loss {
 public:
  struct Kept {
    Tensor<T> outputs;
    Tensor<kernels::Acc<T>> max, sum_exp;  // cross entropy
    void hold(HeldBlocks& blocks) {
      outputs.hold(blocks);
      max.hold(blocks);
      sum_exp.hold(blocks);
    }
  };

  // outputs: the logical number of columns; axis: what they are cut over.
  Loss(const LayerContext<T>& context, LossType type, Index outputs, Axis axis);

  Range held() const { return held_; }
  LossSum forward(const Pass<T>& pass, const Tensor<T>& y, Kept* kept) const;
  // pass.loss_scale x gradient. Cross entropy overwrites the outputs it was given.
  Tensor<T> backward(const Pass<T>& pass, Kept& kept) const;

 private:
  Tensor<T> held_values(const Tensor<T>& values) const;

  LayerContext<T> context_;
  LossType type_;
  Range held_;
  Axis axis_;
};

}  // namespace fourfold
