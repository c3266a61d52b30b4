// Linear layer on the dense grid:  Y = X W^T + b.
//
//   forward : W^ = gather_depth(W);  Y  = sum_in( X W^^T ) + b
//   backward: W^ = gather_depth(W);  dX = sum_out( dY W^ );  dW = reduce_scatter_depth( dY^T X )
//             db = sum of the rows of dY
//
// `in` and `out` are col and row, or swapped. X: R x k (this rank's input features, equal on all ranks of the out
// axis), Y: R x n (this rank's output features of every segment side by side, equal on all ranks of the in axis). Where
// the work before or after is cut over one of these axes, the sum becomes a reduce-scatter and the way back a gather
// (Ends). Sums are of Acc<T> and rounded to T when they are complete.
#pragma once

#include <optional>

#include "layers/weight.hpp"
#include "tensor/layout.hpp"

namespace fourfold {

template <class T>
class Linear {
 public:
  struct Kept {
    Tensor<T> x, dy;
    bool weight_due = false;
    void hold(HeldBlocks& blocks) {
      x.hold(blocks);
      dy.hold(blocks);
    }
  };
  struct Options {
    Orientation orientation;
    bool bias = false;           // parameters named as the weights with ".bias" for ".weight"
    bool input_gradient = true;  // false for a first layer
  };
  // What stands at the ends of one pass. in: the input is gathered over the out axis (its gradient reduce-scattered);
  // out: the output is reduce-scattered over the in axis (its gradient gathered).
  struct Ends {
    const LayoutGather<T>* in = nullptr;
    const LayoutGather<T>* out = nullptr;
  };

  Linear(const LayerContext<T>& context, std::vector<Segment> segments, Index in_features, const Options& options);
  // A layer that uses a matrix of somebody else's (the tied head): no bias.
  Linear(const LayerContext<T>& context, std::shared_ptr<Weight<T>> weight, Orientation orientation);

  const std::shared_ptr<Weight<T>>& weight() const { return weight_; }

  // kept null: nothing is kept.
  Tensor<T> forward(const Tensor<T>& x, Kept* kept, const Ends& ends = {}) const;
  // The sum of dX runs behind the weight product where options.overlap allows.
  Tensor<T> backward_input(const Tensor<T>& dy, Kept& kept, const Ends& ends = {}) const;
  // The same in two steps, where several layers share an input. First dX (+)= dY W^, partial; an empty dx is made.
  void partial_input_gradient(const Tensor<T>& dy, Kept& kept, const LayoutGather<T>* out,
                              Tensor<kernels::Acc<T>>& dx) const;
  // Then partial dX is summed over the out axis (or scattered); `meanwhile` runs behind it.
  Tensor<T> finish_input_gradient(const Tensor<kernels::Acc<T>>& dx, const LayoutGather<T>* in,
                                  const std::function<void()>& meanwhile) const;
  // Without an input gradient: remembers dy for the weight product.
  void keep_output_gradient(const Tensor<T>& dy, Kept& kept) const;
  // Once per backward; nothing to do where it ran behind the sum of dX.
  void backward_weight(Kept& kept) const;

 private:
  Linear(const LayerContext<T>& context, std::shared_ptr<Weight<T>> weight, const Options& options);
  kernels::Vector<const T> bias() const;  // empty: none
  bool bias_is_arriving() const;
  template <class C>
  Tensor<C> product(const Tensor<T>& x, const UsableWeight<T>& w, kernels::Vector<const T> bias) const;
  template <class C>
  void input_product(const Tensor<T>& dy, Tensor<C>& dx) const;
  void count_product(Index rows) const;

  LayerContext<T> context_;
  std::shared_ptr<Weight<T>> weight_;
  std::size_t use_;
  bool first_of_in_axis_;
  std::vector<Param<T>*> biases_;
  Copy<kernels::Acc<T>> copy_in_;  // x is replicated over the out axis
  Sum<kernels::Acc<T>> sum_out_;   // y is partial over the in axis
};

// Output features cut evenly over an axis.
template <class T>
Segment even_segment(const LayerContext<T>& context, std::string name, Index features, Axis out_axis, Initializer init);

}  // namespace fourfold
