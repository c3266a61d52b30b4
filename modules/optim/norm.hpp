// The norm of the whole gradient: each logical element once, one reduction, the same number on every rank.
//
// Which elements a rank counts follows from structure (owner, axes of the gradient's sum), never from which gradients
// happen to be present: an expert without tokens adds zero, and no rank waits for another.
#pragma once

#include <string>
#include <vector>

#include "comm/grid_comms.hpp"
#include "deck/deck.hpp"
#include "tensor/param.hpp"

namespace fourfold {

struct NormReport {
  double norm = 0;               // not finite when a gradient is not
  std::string first_non_finite;  // the first tensor in global order whose gradient is not finite; empty: none
};

// Whether this rank counts the parameter's shard in norms and writes it in checkpoints: one rank among its replicas.
bool counts(const ParamSpec& spec, const Coordinates& here);

template <class T>
class GradientNorm {
 public:
  // Collective over the grid: agrees on the order of all tensors of all stages (declaration order of the lowest rank
  // that has the tensor). Keeps references.
  GradientNorm(const NumericsDeck& numerics, const GridComms& comms, ParamStore<T>& store);

  // Of the reduced gradients. Per-tensor sums of squares, one vector of doubles, summed over the world in rank order,
  // then added in tensor order on rank 0 and broadcast. Errors: fail_all when a snapped run leaves its exact range.
  NormReport compute() const;

  const std::vector<std::string>& tensors() const { return names_; }

 private:
  NumericsDeck numerics_;
  const GridComms& comms_;
  ParamStore<T>& store_;
  std::vector<std::string> names_;   // all tensors of the model in global order
  std::vector<std::size_t> places_;  // of this rank's params in it
};

// The factor of every gradient: min(1, clip / norm), nothing added; 1 with clipping off (clip 0).
double clip_factor(double clip, double norm);

}  // namespace fourfold
