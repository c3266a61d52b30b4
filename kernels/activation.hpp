// Activations, elementwise. GELU: x/2 (1 + erf(x/sqrt 2)); its tanh form: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715
// x^3))). SwiGLU: silu(gate) * up. Backward needs the forward's inputs only.
#pragma once

#include "kernels/types.hpp"

namespace fourfold::kernels {

template <class T>
void relu_forward(const Space& space, Vector<const T> x, Vector<T> y);
template <class T>
void relu_backward(const Space& space, Vector<const T> x, Vector<const T> dy, Vector<T> dx);

template <class T>
void gelu_forward(const Space& space, Vector<const T> x, Vector<T> y);
template <class T>
void gelu_backward(const Space& space, Vector<const T> x, Vector<const T> dy, Vector<T> dx);

template <class T>
void gelu_tanh_forward(const Space& space, Vector<const T> x, Vector<T> y);
template <class T>
void gelu_tanh_backward(const Space& space, Vector<const T> x, Vector<const T> dy, Vector<T> dx);

// gate_up: R x 2F, a row holds F gates then F ups (one fused product made both); y: R x F; dgate_up: R x 2F.
template <class T>
void swiglu_forward(const Space& space, Matrix<const T> gate_up, Matrix<T> y);
template <class T>
void swiglu_backward(const Space& space, Matrix<const T> gate_up, Matrix<const T> dy, Matrix<T> dgate_up);

}  // namespace fourfold::kernels
