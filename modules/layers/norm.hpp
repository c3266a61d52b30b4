// Layer norm and RMS norm over the model width, whose columns may be cut over col: row statistics are summed over col.
// Weights (and the bias of layer norm) are cut over col, replicated over row and depth.
#pragma once

#include <string>

#include "layers/context.hpp"

namespace fourfold {

enum class NormType { layer, rms };

template <class T>
class Norm {
 public:
  struct Kept {
    Tensor<T> x, dy;
    Tensor<kernels::Acc<T>> mean, rstd;  // R each; no mean for RMS norm
    void hold(HeldBlocks& blocks) {
      x.hold(blocks);
      dy.hold(blocks);
      mean.hold(blocks);
      rstd.hold(blocks);
    }
  };

  // Parameters name + ".weight" (ones) and, for layer norm, name + ".bias" (zeros).
  Norm(const LayerContext<T>& context, const std::string& name, NormType type, Index width, double eps);

  Tensor<T> forward(const Tensor<T>& x, Kept* kept) const { return forward(x, Tensor<T>(), kept); }
  // Of h = x + branch, which is left in `branch` (nobody else's).
  Tensor<T> forward(const Tensor<T>& x, const Tensor<T>& branch, Kept* kept) const;
  // The gradient of the norm's input, plus `residual` where one is given: what else reads that input.
  Tensor<T> backward_input(const Tensor<T>& dy, Kept& kept, const Tensor<T>& residual = {}) const;
  void backward_weight(Kept& kept) const;

 private:
  using Statistics = Tensor<kernels::Acc<T>>;
  Statistics row_statistics(Index rows) const;
  bool whole_rows() const { return context_.extent(Axis::col) == 1; }

  LayerContext<T> context_;
  NormType type_;
  Index width_;
  double eps_;
  Param<T>* weight_ = nullptr;
  Param<T>* bias_ = nullptr;
};

}  // namespace fourfold
