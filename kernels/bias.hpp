// Bias of a linear layer: stored with the output features, added once after the forward reduction.
#pragma once

#include "kernels/types.hpp"

namespace fourfold::kernels {

// y[r, :] += bias.  y: R x n of T or Acc<T>, bias: n.
template <class T, class Y = T>
void bias_forward(const Space& space, Vector<const T> bias, Matrix<Y> y);
// dbias (+)= sum over rows of dy, rows in ascending order.
template <class T>
void bias_backward(const Space& space, Matrix<const T> dy, Vector<Acc<T>> dbias, Write write);

}  // namespace fourfold::kernels
