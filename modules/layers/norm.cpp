#include "layers/norm.hpp"

#include "kernels/norm.hpp"

namespace fourfold {

using kernels::Acc;

namespace {

template <class T>
Param<T>* declare_vector(const LayerContext<T>& context, std::string name, Index width, double value) {
  const Range held = context.part_of(width, Axis::col);
  ParamSpec spec;
  spec.name = std::move(name);
  spec.shard = Shard{{width}, {held}, {0, held.size()}};
  spec.sum_over = context.stream_sums();
  spec.owner = spec.sum_over.has(Axis::row) || context.place(Axis::row) == 0;
  spec.init = constant_initializer(value);
  return context.store.declare(std::move(spec));
}

}  // namespace

template <class T>
Norm<T>::Norm(const LayerContext<T>& context, const std::string& name, NormType type, Index width, double eps)
    : context_(context), type_(type), width_(width), eps_(eps) {
  weight_ = declare_vector(context, name + ".weight", width, 1.0);
  if (type == NormType::layer) bias_ = declare_vector(context, name + ".bias", width, 0.0);
}

template <class T>
typename Norm<T>::Statistics Norm<T>::row_statistics(Index rows) const {
  return Statistics(context_.pool, MemoryTag::activations, rows, 1);
}

template <class T>
Tensor<T> Norm<T>::forward(const Tensor<T>& x, Kept* kept) const {
  const Space space;
  const Communicator& col = context_.comms.group(AxisSet{Axis::col});
  Tensor<T> y(context_.pool, MemoryTag::activations, x.rows(), x.cols());
  const Statistics squares = row_statistics(x.rows());
  const Statistics rstd = row_statistics(x.rows());
  Statistics mean;
  if (type_ == NormType::rms) {
    kernels::norm_row_squares<T>(space, x.matrix(), squares.vector());
    sum_over(col, squares, context_.options.summation, Phase::forward);
    kernels::rms_norm_forward<T>(space, x.matrix(), squares.vector(), width_, eps_, weight_->use(), y.matrix(),
                                 rstd.vector());
  } else {
    const Statistics sum = row_statistics(x.rows());
    mean = row_statistics(x.rows());
    kernels::norm_row_sum<T>(space, x.matrix(), sum.vector());
    sum_over(col, sum, context_.options.summation, Phase::forward);
    kernels::norm_centred_squares<T>(space, x.matrix(), sum.vector(), width_, squares.vector());
    sum_over(col, squares, context_.options.summation, Phase::forward);
    kernels::layer_norm_forward<T>(space, x.matrix(), sum.vector(), squares.vector(), width_, eps_, weight_->use(),
                                   bias_->use(), y.matrix(), mean.vector(), rstd.vector());
  }
  if (kept != nullptr) *kept = Kept{x, {}, mean, rstd};
  return y;
}

template <class T>
Tensor<T> Norm<T>::backward_input(const Tensor<T>& dy, Kept& kept) const {
  const Space space;
  const Communicator& col = context_.comms.group(AxisSet{Axis::col});
  const bool layer = type_ == NormType::layer;
  const Statistics c1 = row_statistics(layer ? dy.rows() : 0);
  const Statistics c2 = row_statistics(dy.rows());
  kernels::norm_backward_sums<T>(space, kept.x.matrix(), kept.mean.vector(), kept.rstd.vector(), weight_->use(),
                                 dy.matrix(), c1.vector(), c2.vector());
  if (layer) sum_over(col, c1, context_.options.summation, Phase::backward);
  sum_over(col, c2, context_.options.summation, Phase::backward);
  Tensor<T> dx(context_.pool, MemoryTag::activations, dy.rows(), dy.cols());
  kernels::norm_backward_input<T>(space, kept.x.matrix(), kept.mean.vector(), kept.rstd.vector(), weight_->use(),
                                  dy.matrix(), c1.vector(), c2.vector(), width_, dx.matrix());
  kept.dy = dy;
  return dx;
}

template <class T>
void Norm<T>::backward_weight(Kept& kept) const {
  kernels::norm_backward_weight<T>(Space(), kept.x.matrix(), kept.mean.vector(), kept.rstd.vector(), kept.dy.matrix(),
                                   weight_->grad, bias_ != nullptr ? bias_->grad : kernels::Vector<Acc<T>>(),
                                   kernels::Write::add);
  kept = Kept{};
}

template class Norm<float>;
template class Norm<double>;
template class Norm<kernels::bf16>;

}  // namespace fourfold
