#include "layers/loss.hpp"

#include "kernels/loss.hpp"
#include "kernels/vector.hpp"

namespace fourfold {

using kernels::Acc;

template <class T>
Loss<T>::Loss(const LayerContext<T>& context, LossType type, Index outputs, Axis axis)
    : context_(context), type_(type), held_(context.part_of(outputs, axis)), axis_(axis) {}

template <class T>
Tensor<T> Loss<T>::held_values(const Tensor<T>& values) const {
  if (values.cols() == held_.size()) return values;
  Tensor<T> mine(context_.pool, MemoryTag::buffers, values.rows(), held_.size());
  kernels::copy_columns<T>(Space(), values.matrix(), held_.begin, held_.size(), mine.matrix(), 0);
  return mine;
}

template <class T>
LossSum Loss<T>::forward(const Pass<T>& pass, const Tensor<T>& y, Kept* kept) const {
  const Space space;
  const Communicator& cut = context_.comms.group(AxisSet{axis_});
  const MicroBatch<T>& batch = *pass.batch;
  const Index rows = y.rows();
  const Tensor<double> losses(context_.pool, MemoryTag::buffers, rows, 1);
  LossSum result;
  Tensor<Acc<T>> max, sum_exp;
  if (type_ == LossType::cross_entropy) {
    max = Tensor<Acc<T>>(context_.pool, MemoryTag::activations, rows, 1);
    sum_exp = Tensor<Acc<T>>(context_.pool, MemoryTag::activations, rows, 1);
    const Tensor<Acc<T>> target_logit(context_.pool, MemoryTag::buffers, rows, 1);
    kernels::cross_entropy_max<T>(space, y.matrix(), max.vector());
    Space().fence();
    all_reduce_max<Acc<T>>(cut, {max.data(), static_cast<std::size_t>(rows)}, Phase::forward);
    kernels::cross_entropy_sums<T>(space, y.matrix(), max.vector(), batch.targets.vector(), held_.begin,
                                   sum_exp.vector(), target_logit.vector());
    sum_over(cut, sum_exp, context_.options.summation, Phase::forward);
    sum_over(cut, target_logit, context_.options.summation, Phase::forward);
    kernels::cross_entropy_forward<T>(space, max.vector(), sum_exp.vector(), target_logit.vector(),
                                      batch.targets.vector(), losses.vector());
    result.targets = kernels::count_targets(space, batch.targets.vector());
  } else if (type_ == LossType::squared_error_onehot) {
    kernels::squared_error_onehot_forward<T>(space, y.matrix(), batch.targets.vector(), held_.begin, losses.vector());
    sum_over(cut, losses, context_.options.summation, Phase::forward);
    result.targets = kernels::count_targets(space, batch.targets.vector());
  } else {
    kernels::squared_error_forward<T>(space, y.matrix(), held_values(batch.values).matrix(), losses.vector());
    sum_over(cut, losses, context_.options.summation, Phase::forward);
    result.targets = rows;
  }
  result.loss = kernels::sum<double>(space, losses.vector());
  if (kept != nullptr) *kept = Kept{y, max, sum_exp};
  return result;
}

template <class T>
Tensor<T> Loss<T>::backward(const Pass<T>& pass, Kept& kept) const {
  const Space space;
  const MicroBatch<T>& batch = *pass.batch;
  const Tensor<T> dy = kept.outputs;
  if (type_ == LossType::cross_entropy) {
    kernels::cross_entropy_backward<T>(space, kept.outputs.matrix(), kept.max.vector(), kept.sum_exp.vector(),
                                       batch.targets.vector(), held_.begin, pass.loss_scale, dy.matrix());
  } else if (type_ == LossType::squared_error_onehot) {
    kernels::squared_error_onehot_backward<T>(space, kept.outputs.matrix(), batch.targets.vector(), held_.begin,
                                              pass.loss_scale, dy.matrix());
  } else {
    kernels::squared_error_backward<T>(space, kept.outputs.matrix(), held_values(batch.values).matrix(),
                                       pass.loss_scale, dy.matrix());
  }
  if (context_.options.snap) kernels::snap<T>(space, context_.options.snap->gradients, dy.vector());
  kept = Kept{};
  return dy;
}

template class Loss<float>;
template class Loss<double>;
template class Loss<kernels::bf16>;

}  // namespace fourfold
