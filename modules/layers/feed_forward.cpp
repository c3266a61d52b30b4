#include "layers/feed_forward.hpp"

#include "kernels/activation.hpp"

namespace fourfold {

namespace {

template <class T>
std::vector<Segment> up_segments(const LayerContext<T>& context, const std::string& name, ActivationType type,
                                 Index width, Index hidden, const InitializerFor& init) {
  std::vector<Segment> segments;
  for (const char* which : {".gate.weight", ".up.weight"}) {
    if (type != ActivationType::swiglu && which == std::string(".gate.weight")) continue;
    segments.push_back(even_segment(context, name + which, hidden, Axis::row, init(name + which, width, false)));
  }
  return segments;
}

}  // namespace

template <class T>
Tensor<T> activate(Pool& pool, ActivationType type, const Tensor<T>& x) {
  const Space space;
  Tensor<T> y(pool, MemoryTag::activations, x.rows(), type == ActivationType::swiglu ? x.cols() / 2 : x.cols());
  switch (type) {
    case ActivationType::relu:
      kernels::relu_forward<T>(space, x.vector(), y.vector());
      break;
    case ActivationType::gelu:
      kernels::gelu_forward<T>(space, x.vector(), y.vector());
      break;
    case ActivationType::gelu_tanh:
      kernels::gelu_tanh_forward<T>(space, x.vector(), y.vector());
      break;
    case ActivationType::swiglu:
      kernels::swiglu_forward<T>(space, x.matrix(), y.matrix());
      break;
  }
  return y;
}

template <class T>
Tensor<T> activate_backward(Pool& pool, ActivationType type, const Tensor<T>& x, const Tensor<T>& dy) {
  const Space space;
  Tensor<T> dx(pool, MemoryTag::activations, x.rows(), x.cols());
  switch (type) {
    case ActivationType::relu:
      kernels::relu_backward<T>(space, x.vector(), dy.vector(), dx.vector());
      break;
    case ActivationType::gelu:
      kernels::gelu_backward<T>(space, x.vector(), dy.vector(), dx.vector());
      break;
    case ActivationType::gelu_tanh:
      kernels::gelu_tanh_backward<T>(space, x.vector(), dy.vector(), dx.vector());
      break;
    case ActivationType::swiglu:
      kernels::swiglu_backward<T>(space, x.matrix(), dy.matrix(), dx.matrix());
      break;
  }
  return dx;
}

template <class T>
FeedForward<T>::FeedForward(const LayerContext<T>& context, const std::string& name, ActivationType type, Index width,
                            Index hidden, bool bias, const InitializerFor& init, bool input_gradient)
    : context_(context),
      type_(type),
      input_gradient_(input_gradient),
      up_(context, up_segments(context, name, type, width, hidden, init), width, {Orientation{}, bias, input_gradient}),
      down_(context,
            {even_segment(context, name + ".down.weight", width, Axis::col, init(name + ".down.weight", hidden, true))},
            hidden, {Orientation{}.swapped(), bias, true}) {}

template <class T>
Tensor<T> FeedForward<T>::forward(const RowPlan<T>& rows, const Tensor<T>& x, Kept* kept) const {
  const auto over_row = rows.over_row(context_, x.cols());
  const Tensor<T> up = up_.forward(x, kept != nullptr ? &kept->up_linear : nullptr, {over_row.get(), nullptr});
  if (kept != nullptr) kept->up = up;
  const Tensor<T> hidden = activate(context_.pool, type_, up);
  return down_.forward(hidden, kept != nullptr ? &kept->down_linear : nullptr, {nullptr, over_row.get()});
}

template <class T>
Tensor<T> FeedForward<T>::backward_input(const RowPlan<T>& rows, const Tensor<T>& dy, Kept& kept) const {
  const auto over_row = rows.over_row(context_, dy.cols());
  const Tensor<T> dhidden = down_.backward_input(dy, kept.down_linear, {nullptr, over_row.get()});
  const Tensor<T> dup = activate_backward(context_.pool, type_, kept.up, dhidden);
  kept.up = Tensor<T>();
  if (!input_gradient_) {
    up_.keep_output_gradient(dup, kept.up_linear);
    return {};
  }
  return up_.backward_input(dup, kept.up_linear, {over_row.get(), nullptr});
}

template <class T>
void FeedForward<T>::backward_weight(Kept& kept) const {
  down_.backward_weight(kept.down_linear);
  up_.backward_weight(kept.up_linear);
}

template Tensor<float> activate(Pool&, ActivationType, const Tensor<float>&);
template Tensor<double> activate(Pool&, ActivationType, const Tensor<double>&);
template Tensor<kernels::bf16> activate(Pool&, ActivationType, const Tensor<kernels::bf16>&);
template Tensor<float> activate_backward(Pool&, ActivationType, const Tensor<float>&, const Tensor<float>&);
template Tensor<double> activate_backward(Pool&, ActivationType, const Tensor<double>&, const Tensor<double>&);
template Tensor<kernels::bf16> activate_backward(Pool&, ActivationType, const Tensor<kernels::bf16>&,
                                                 const Tensor<kernels::bf16>&);
template class FeedForward<float>;
template class FeedForward<double>;
template class FeedForward<kernels::bf16>;

}  // namespace fourfold
