// The matrix of one or several fused linear layers (q alone; k and v; gate and up), cut over row, col and depth. Its
// segments are parameters of their own with logical names and shapes, stored side by side so that one product serves
// all.
//
// A rank's local matrix W is n x k (its output features of every segment x its input features). With a depth axis the
// flattened local matrix is kept in shards, gathered for use, and its gradient is reduce-scattered.
#pragma once

#include <string>
#include <vector>

#include "layers/context.hpp"

namespace fourfold {

struct Segment {
  std::string name;    // of the parameter: "layers.0.attention.k.weight"
  Index features = 0;  // logical output features (rows of W)
  Range held;          // the rows that this rank holds
  // Neighbours on row that hold the same rows (KV heads beyond one a rank): their gradients are summed, the first owns.
  int sharers = 1;
  // Where above 0: the stage that holds the same rows as the first one and uses them too; their gradients are summed.
  int tied_stage = 0;
  bool owner = true;  // as ParamSpec::owner
  Initializer init;
};

// A local matrix ready for use; holds the gathered copy while it lives.
template <class T>
struct UsableWeight {
  Tensor<T> gathered;
  kernels::Matrix<const T> matrix;
};

template <class T>
class Weight {
 public:
  // in_features: logical; in_held: the columns this rank holds.
  Weight(const LayerContext<T>& context, std::vector<Segment> segments, Index in_features, Range in_held);

  Index rows() const { return rows_; }  // n
  Index cols() const { return cols_; }  // k

  // A use of the matrix by a layer of `gathers`' chunk, registered in forward order (one a layer: a tied matrix has
  // two).
  std::size_t register_use(GatherQueue<T>& gathers, bool backward) const;
  UsableWeight<T> use(GatherQueue<T>& gathers, std::size_t use, Phase phase) const;

  // Adds to the gradient: `product(dw, write)` must overwrite or add the n x k matrix it is given, as `write` says.
  // With a depth axis the reduce-scatter runs behind later work; Deferred::finish() completes it. Where `gathers` holds
  // its weights, gradients are added up whole, and scattered by its reduce().
  template <class Product>
  void add_gradient(const GatherQueue<T>& gathers, const Product& product) const {
    if (gather_.ranks() == 1) {
      product(local_gradient(), next_write(params_));
      return;
    }
    if (gathers.holds()) {
      const bool first = whole_gradient_.data() == nullptr;
      if (first) whole_gradient_ = Tensor<kernels::Acc<T>>(context_.pool, MemoryTag::buffers, rows_, cols_);
      product(whole_gradient_.matrix(), first ? kernels::Write::overwrite : kernels::Write::add);
      return;
    }
    Tensor<kernels::Acc<T>> whole(context_.pool, MemoryTag::buffers, rows_, cols_);
    product(whole.matrix(), kernels::Write::overwrite);
    scatter_gradient(whole);
  }

 private:
  kernels::Matrix<kernels::Acc<T>> local_gradient() const;
  void scatter_gradient(const Tensor<kernels::Acc<T>>& whole) const;
  void reduce_whole_gradient() const;
  Index shard_size() const;

  LayerContext<T> context_;
  std::vector<Param<T>*> params_;
  Index rows_ = 0;
  Index cols_ = 0;
  Gather<T> gather_;
  mutable Tensor<kernels::Acc<T>> whole_gradient_;  // of all micro-batches so far, while weights are held
};

}  // namespace fourfold
