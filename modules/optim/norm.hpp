// The norm of the whole gradient: each logical element once, one reduction, the same number on every rank.
#pragma once

#include <string>
#include <vector>

#include "comm/grid_comms.hpp"
#include "deck/deck.hpp"
#include "optim/tensor_sums.hpp"

namespace fourfold {

struct NormReport {
  double norm = 0;               // not finite when a gradient is not
  std::string first_non_finite;  // the first tensor in global order whose gradient is not finite; empty: none
};

template <class T>
class GradientNorm {
 public:
  // Keeps references.
  GradientNorm(const NumericsDeck& numerics, const GridComms& comms, const TensorSums<T>& tensors);

  // Of the reduced gradients, each rank its part of the update. Per-tensor sums of squares, one vector of doubles,
  // summed over the world in rank order, then added in tensor order on rank 0 and broadcast. Errors: fail_all when a
  // snapped run leaves its exact range.
  NormReport compute() const;

 private:
  NumericsDeck numerics_;
  const GridComms& comms_;
  const TensorSums<T>& tensors_;
};

// The factor of every gradient: min(1, clip / norm), nothing added; 1 with clipping off (clip 0).
double clip_factor(double clip, double norm);

}  // namespace fourfold
