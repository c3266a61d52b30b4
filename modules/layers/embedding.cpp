#include "layers/embedding.hpp"

#include "kernels/embedding.hpp"
#include "kernels/vector.hpp"
#include "layers/linear.hpp"

namespace fourfold {

template <class T>
Embedding<T>::Embedding(const LayerContext<T>& context, std::string name, Index vocab, Index width, Initializer init)
    : context_(context),
      vocabulary_(context.part_of(vocab, Axis::row)),
      weight_(std::make_shared<Weight<T>>(
          context, std::vector{even_segment(context, std::move(name), vocab, Axis::row, std::move(init))}, width,
          context.part_of(width, Axis::col))),
      sum_row_(context.comms.group({Axis::row}), context.summation) {}

template <class T>
Tensor<T> Embedding<T>::forward(const Tensor<std::int32_t>& ids) const {
  const UsableWeight<T> w = weight_->use(Phase::forward);
  Tensor<T> y(context_.pool, MemoryTag::activations, ids.rows(), weight_->cols());
  kernels::embedding_forward<T>(Space(), ids.vector(), w.matrix, vocabulary_.begin, y.matrix());
  sum_row_.forward(y);
  return y;
}

template <class T>
void Embedding<T>::backward_weight(const Tensor<std::int32_t>& ids, const Tensor<T>& dy) const {
  weight_->add_gradient([&](kernels::Matrix<kernels::Acc<T>> dw, kernels::Write write) {
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
  spec.sum_over = {Axis::data, Axis::depth};
  spec.owner = context.place(Axis::row) == 0;
  spec.init = std::move(init);
  param_ = context.store.declare(std::move(spec));
}

template <class T>
void LearnedPositions<T>::forward(Index tokens, Index offset, const Tensor<T>& y) const {
  const kernels::Matrix<const T> table(param_->value.data(), param_->spec.shard.shape[0], width_);
  kernels::position_forward<T>(Space(), table, tokens, offset, y.matrix());
}

template <class T>
void LearnedPositions<T>::backward_weight(Index tokens, const Tensor<T>& dy) const {
  const kernels::Matrix<kernels::Acc<T>> dtable(param_->grad.data(), param_->spec.shard.shape[0], width_);
  kernels::position_backward<T>(Space(), dy.matrix(), tokens, 0, dtable);
}

template class Embedding<float>;
template class Embedding<double>;
template class LearnedPositions<float>;
template class LearnedPositions<double>;

}  // namespace fourfold
