#include "layers/embedding.hpp"

#include <utility>

#include "kernels/embedding.hpp"
#include "kernels/vector.hpp"
#include "tensor/number.hpp"

namespace fourfold {

template <class T>
Embedding<T>::Embedding(const LayerContext<T>& context, std::shared_ptr<Weight<T>> table, Index vocab)
    : context_(context),
      vocabulary_(context.part_of(vocab, Axis::row)),
      weight_(std::move(table)),
      use_(weight_->register_use(context.gathers, false)),
      sum_row_(context.comms.group(AxisSet{Axis::row}), context.options.summation) {}

template <class T>
Tensor<T> Embedding<T>::forward(const Tensor<std::int32_t>& ids, const LayoutGather<T>* over_row) const {
  const UsableWeight<T> w = weight_->use(context_.gathers, use_, Phase::forward);
  const auto look_up = [&]<class Y>(Tensor<Y> y) {
    kernels::embedding_forward<T, Y>(Space(), ids.vector(), w.matrix, vocabulary_.begin, y.matrix());
    return y;
  };
  if (over_row == nullptr && sum_row_.ranks() == 1) {
    return look_up(Tensor<T>(context_.pool, MemoryTag::activations, ids.rows(), weight_->cols()));
  }
  Tensor<kernels::Acc<T>> sum =
      look_up(Tensor<kernels::Acc<T>>(context_.pool, MemoryTag::activations, ids.rows(), weight_->cols()));
  if (over_row != nullptr) {
    sum = over_row->scatter_sum(sum, Phase::forward);
  } else {
    sum_row_.forward(sum);
  }
  return rounded<T>(context_.pool, sum);
}

template <class T>
void Embedding<T>::backward_weight(const Tensor<std::int32_t>& ids, const Tensor<T>& output_gradient,
                                   const LayoutGather<T>* over_row) const {
  const Tensor<T> dy = over_row != nullptr ? over_row->gather(output_gradient, Phase::backward) : output_gradient;
  weight_->add_gradient(context_.gathers, [&](kernels::Matrix<kernels::Acc<T>> dw, kernels::Write write) {
    const Space space;
    if (write == kernels::Write::overwrite) {
      kernels::fill<kernels::Acc<T>>(space, 0, kernels::Vector<kernels::Acc<T>>(dw.data(), dw.size()));
    }
    kernels::embedding_backward<T>(space, ids.vector(), dy.matrix(), vocabulary_.begin, dw);
  });
}

template <class T>
LearnedPositions<T>::LearnedPositions(const LayerContext<T>& context, std::string name, Index sequence, Index width,
                                      Initializer init)
    : width_(context.part_of(width, Axis::col).size()) {
  ParamSpec spec;
  spec.name = std::move(name);
  spec.shard = Shard{{sequence, width}, {{0, sequence}, context.part_of(width, Axis::col)}, {0, sequence * width_}};
  spec.sum_over = context.stream_sums();
  spec.owner = spec.sum_over.has(Axis::row) || context.place(Axis::row) == 0;
  spec.init = std::move(init);
  param_ = context.store.declare(std::move(spec));
}

namespace {

kernels::RowPositions of_range(const Tensor<std::int32_t>& positions, Index first, const Range& range) {
  return {range.size(), range.begin, positions.rows() > 0 ? positions.data() + first : nullptr};
}

}  // namespace

template <class T>
void LearnedPositions<T>::forward(const Rows& rows, const Tensor<std::int32_t>& positions, const Tensor<T>& y) const {
  const kernels::Matrix<const T> table(param_->use().data(), param_->spec.shard.shape[0], width_);
  for_each_range(rows, [&](Index first, Index count, Range range) {
    kernels::position_forward<T>(Space(), table, of_range(positions, first, range), row_block(y, first, count));
  });
}

template <class T>
void LearnedPositions<T>::backward_weight(const Rows& rows, const Tensor<std::int32_t>& positions,
                                          const Tensor<T>& dy) const {
  if (param_->next_write() == kernels::Write::overwrite) {
    kernels::fill<kernels::Acc<T>>(Space(), 0, param_->grad);
  }
  const kernels::Matrix<kernels::Acc<T>> dtable(param_->grad.data(), param_->spec.shard.shape[0], width_);
  for_each_range(rows, [&](Index first, Index count, Range range) {
    kernels::position_backward<T>(Space(), row_block(dy, first, count), of_range(positions, first, range), dtable);
  });
}

template class Embedding<float>;
template class Embedding<double>;
template class Embedding<kernels::bf16>;
template class LearnedPositions<float>;
template class LearnedPositions<double>;
template class LearnedPositions<kernels::bf16>;

}  // namespace fourfold
