#include "layers/norm.hpp"

#include "kernels/norm.hpp"
#include "kernels/vector.hpp"

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
Tensor<T> Norm<T>::forward(const Tensor<T>& input, const Tensor<T>& branch, Kept* kept) const {
  const Space space;
  const bool layer = type_ == NormType::layer;
  const Tensor<T>& x = branch.data() != nullptr ? branch : input;
  Tensor<T> y(context_.pool, MemoryTag::activations, input.rows(), input.cols());
  const Statistics rstd = row_statistics(x.rows());
  const Statistics mean = layer ? row_statistics(x.rows()) : Statistics();
  if (whole_rows()) {
    if (layer) {
      kernels::layer_norm_rows<T>(space, input.matrix(), branch.matrix(), eps_, weight_->use(), bias_->use(),
                                  y.matrix(), mean.vector(), rstd.vector());
    } else {
      kernels::rms_norm_rows<T>(space, input.matrix(), branch.matrix(), eps_, weight_->use(), y.matrix(),
                                rstd.vector());
    }
  } else {
    const Communicator& col = context_.comms.group(AxisSet{Axis::col});
    const Statistics squares = row_statistics(x.rows());
    if (branch.data() != nullptr) kernels::add<T>(space, input.vector(), branch.vector());
    if (layer) {
      const Statistics sum = row_statistics(x.rows());
      kernels::norm_row_sum<T>(space, x.matrix(), sum.vector());
      sum_over(col, sum, context_.options.summation, Phase::forward);
      kernels::norm_centred_squares<T>(space, x.matrix(), sum.vector(), width_, squares.vector());
      sum_over(col, squares, context_.options.summation, Phase::forward);
      kernels::layer_norm_forward<T>(space, x.matrix(), sum.vector(), squares.vector(), width_, eps_, weight_->use(),
                                     bias_->use(), y.matrix(), mean.vector(), rstd.vector());
    } else {
      kernels::norm_row_squares<T>(space, x.matrix(), squares.vector());
      sum_over(col, squares, context_.options.summation, Phase::forward);
      kernels::rms_norm_forward<T>(space, x.matrix(), squares.vector(), width_, eps_, weight_->use(), y.matrix(),
                                   rstd.vector());
    }
  }
  if (kept != nullptr) *kept = Kept{x, {}, mean, rstd};
  return y;
}

template <class T>
Tensor<T> Norm<T>::backward_input(const Tensor<T>& dy, Kept& kept, const Tensor<T>& residual) const {
  const Space space;
  Tensor<T> dx(context_.pool, MemoryTag::activations, dy.rows(), dy.cols());
  kept.dy = dy;
  if (whole_rows()) {
    kernels::norm_backward_rows<T>(space, kept.x.matrix(), kept.mean.vector(), kept.rstd.vector(), weight_->use(),
                                   dy.matrix(), residual.matrix(), dx.matrix());
    return dx;
  }
  const Communicator& col = context_.comms.group(AxisSet{Axis::col});
  const bool layer = type_ == NormType::layer;
  const Statistics c1 = row_statistics(layer ? dy.rows() : 0);
  const Statistics c2 = row_statistics(dy.rows());
  kernels::norm_backward_sums<T>(space, kept.x.matrix(), kept.mean.vector(), kept.rstd.vector(), weight_->use(),
                                 dy.matrix(), c1.vector(), c2.vector());
  if (layer) sum_over(col, c1, context_.options.summation, Phase::backward);
  sum_over(col, c2, context_.options.summation, Phase::backward);
  kernels::norm_backward_input<T>(space, kept.x.matrix(), kept.mean.vector(), kept.rstd.vector(), weight_->use(),
                                  dy.matrix(), c1.vector(), c2.vector(), width_, dx.matrix());
  if (residual.data() != nullptr) kernels::add<T>(space, residual.vector(), dx.vector());
  return dx;
}

template <class T>
void Norm<T>::backward_weight(Kept& kept) const {
  const kernels::Write write = weight_->next_write();
  if (bias_ != nullptr) bias_->next_write();
  kernels::norm_backward_weight<T>(Space(), kept.x.matrix(), kept.mean.vector(), kept.rstd.vector(), kept.dy.matrix(),
                                   weight_->grad, bias_ != nullptr ? bias_->grad : kernels::Vector<Acc<T>>(), write);
  kept = Kept{};
}

template class Norm<float>;
template class Norm<double>;
template class Norm<kernels::bf16>;

}  // namespace fourfold
