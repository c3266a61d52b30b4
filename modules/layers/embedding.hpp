// Token embedding: table V x D, vocabulary cut over row, columns over col, flattened parts over depth.
//   forward: y = sum_row( table[ids - first id of this part] );  backward: dtable[id] += dy (reduce-scattered over
//   depth)
// y: R x D/col, equal on all ranks of row.  And learned positions: table T x D, columns over col.
#pragma once

#include "layers/rows.hpp"
#include "layers/weight.hpp"

namespace fourfold {

template <class T>
class Embedding {
 public:
  Embedding(const LayerContext<T>& context, std::shared_ptr<Weight<T>> table, Index vocab);

  const Weight<T>& weight() const { return *weight_; }
  // over_row: the rows are cut over row afterwards (sequence sharding): the sum becomes a reduce-scatter.
  Tensor<T> forward(const Tensor<std::int32_t>& ids, const LayoutGather<T>* over_row) const;
  void backward_weight(const Tensor<std::int32_t>& ids, const Tensor<T>& dy, const LayoutGather<T>* over_row) const;

 private:
  LayerContext<T> context_;
  Range vocabulary_;
  std::shared_ptr<Weight<T>> weight_;
  std::size_t use_;
  Sum<kernels::Acc<T>> sum_row_;
};

template <class T>
class LearnedPositions {
 public:
  LearnedPositions(const LayerContext<T>& context, std::string name, Index sequence, Index width, Initializer init);

  // In place; a row's position is its token's, or what `positions` says of it.
  void forward(const Rows& rows, const Tensor<std::int32_t>& positions, const Tensor<T>& y) const;
  void backward_weight(const Rows& rows, const Tensor<std::int32_t>& positions, const Tensor<T>& dy) const;

 private:
  Param<T>* param_;
  Index width_;
};

}  // namespace fourfold
