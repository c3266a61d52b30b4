// Linear layer on the dense grid:  Y = X W^T + b.
//
//   forward : W^ = gather_depth(W);  Y  = sum_in( X W^^T ) + b
//   backward: W^ = gather_depth(W);  dX = sum_out( dY W^ );  dW = reduce_scatter_depth( dY^T X );  db = sum of rows of
//   dY
//
// `in` and `out` are col and row, or swapped. X: R x k (this rank's input features, equal on all ranks of the out
// axis), Y: R x n (this rank's output features of every segment side by side, equal on all ranks of the in axis).
#pragma once

#include <optional>

#include "layers/weight.hpp"

namespace fourfold {

template <class T>
class Linear {
 public:
  struct Kept {
    Tensor<T> x, dy;
  };
  struct Options {
    Orientation orientation;
    bool bias = false;  // parameters named as the weights with ".bias" for ".weight"
  };

  Linear(const LayerContext<T>& context, std::vector<Segment> segments, Index in_features, const Options& options);
  // A layer that uses a matrix of somebody else's (the tied head): no bias.
  Linear(const LayerContext<T>& context, std::shared_ptr<Weight<T>> weight, Orientation orientation);

  const std::shared_ptr<Weight<T>>& weight() const { return weight_; }

  // kept null: nothing is kept.
  Tensor<T> forward(const Tensor<T>& x, Kept* kept) const;
  Tensor<T> backward_input(const Tensor<T>& dy, Kept& kept) const;
  // Without an input gradient (first layers): remembers dy for the weight product.
  void keep_output_gradient(const Tensor<T>& dy, Kept& kept) const { kept.dy = dy; }
  void backward_weight(Kept& kept) const;

 private:
  void check_range(double largest_product, Index terms, int bits, int ranks) const;

  LayerContext<T> context_;
  std::shared_ptr<Weight<T>> weight_;
  std::vector<Param<T>*> biases_;
  Copy<T> copy_in_;  // x is replicated over the out axis
  Sum<T> sum_out_;   // y is partial over the in axis
};

// A column of output features cut evenly over the out axis.
template <class T>
Segment even_segment(const LayerContext<T>& context, std::string name, Index features, Axis out_axis, Initializer init);

}  // namespace fourfold
