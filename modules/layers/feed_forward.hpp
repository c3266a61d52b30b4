// Feed-forward of a transformer block: down(act(up x)), or down(silu(gate x) * (up x)) with gate and up in one product.
// The hidden width is cut over row.
#pragma once

#include <string>

#include "layers/attention.hpp"
#include "layers/linear.hpp"

namespace fourfold {

enum class ActivationType { relu, gelu, gelu_tanh, swiglu };

// y = act(x) of one of the elementwise kinds, and its adjoint.
template <class T>
Tensor<T> activate(Pool& pool, ActivationType type, const Tensor<T>& x);
template <class T>
Tensor<T> activate_backward(Pool& pool, ActivationType type, const Tensor<T>& x, const Tensor<T>& dy);

template <class T>
class FeedForward {
 public:
  struct Kept {
    typename Linear<T>::Kept up_linear, down_linear;
    Tensor<T> up;  // before the activation
    void hold(HeldBlocks& blocks) {
      up_linear.hold(blocks);
      down_linear.hold(blocks);
      up.hold(blocks);
    }
  };

  FeedForward(const LayerContext<T>& context, const std::string& name, ActivationType type, Index width, Index hidden,
              bool bias, const InitializerFor& init, bool input_gradient = true);

  Index input_cols() const { return up_.weight()->cols(); }
  Tensor<T> forward(const RowPlan<T>& rows, const Tensor<T>& x, Kept* kept) const;
  // Without an input gradient (a first layer): empty.
  Tensor<T> backward_input(const RowPlan<T>& rows, const Tensor<T>& dy, Kept& kept) const;
  void backward_weight(Kept& kept) const;

 private:
  LayerContext<T> context_;
  ActivationType type_;
  bool input_gradient_;
  Linear<T> up_, down_;
};

}  // namespace fourfold
