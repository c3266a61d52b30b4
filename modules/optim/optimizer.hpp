// SGD, momentum and AdamW on the parameters' flat buffers (formulas: kernels/update.hpp). Weight decay only on
// parameters that decay.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "tensor/param.hpp"

namespace fourfold {

// The dyadic deck: `numerics.snap` is the number of bits that weights keep after their update.
template <class T>
class Optimizer {
 public:
  // One parameter's part of one kind of state; a checkpoint holds it as /optimizer/KIND/NAME.
  struct State {
    std::string kind;                 // "m", "v"; momentum keeps its velocity in "m"
    const Param<T>* param = nullptr;  // same shard as its value
    kernels::Vector<T> values;
  };

  // State is allocated (MemoryTag::optimizer) and zero. Keeps a reference to `store`.
  Optimizer(const OptimizerDeck& deck, const NumericsDeck& numerics, ParamStore<T>& store, Pool& pool);

  // One step: w from reduced gradients times `scale` (the clip factor). `step` counts from 1 (AdamW's bias correction).
  void update(std::int64_t step, double rate, double scale);

  // What one update moves through memory: gradients are read, weights and states read and written.
  std::int64_t update_bytes() const;

  // All kinds of all parameters, kind by kind in declaration order; empty for SGD.
  const std::vector<State>& states() const { return states_; }

 private:
  // Neighbours in a group's buffers with the same decay: one kernel call.
  struct Run {
    std::size_t group = 0;
    Index begin = 0, size = 0;
    double decay = 0;
  };

  OptimizerDeck deck_;
  NumericsDeck numerics_;
  ParamStore<T>& store_;
  std::vector<Run> runs_;
  std::vector<Tensor<T>> first_, second_;  // per group; empty where the kind has none
  std::vector<State> states_;
};

}  // namespace fourfold
