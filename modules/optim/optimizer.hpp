// SGD, momentum, AdamW, LARS and LAMB on this rank's part of the parameters' flat buffers (formulas:
// kernels/update.hpp), in Acc<T>: bf16 weights follow fp32 masters. Weight decay only on parameters that decay (two or
// more dims); LARS and LAMB adapt the rate of those alone, tensor by tensor, with the norms of the whole logical
// tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "optim/tensor_sums.hpp"
#include "optim/update_plan.hpp"
#include "tensor/param.hpp"

namespace fourfold {

// The dyadic deck: `numerics.snap` is the number of bits that weights keep after their update.
template <class T>
class Optimizer {
  using A = kernels::Acc<T>;

 public:
  // One parameter's part of one kind of state; a checkpoint holds it as /optimizer/KIND/NAME.
  struct State {
    std::string kind;  // "m", "v", and "master" of bf16; momentum and lars keep their velocity in "m"
    const Param<T>* param = nullptr;
    Shard shard;                           // of the parameter's logical tensor; empty where another rank has it
    const Communicator* copies = nullptr;  // the ranks with the same elements; nullptr: this one alone
    kernels::Vector<A> values;
  };

  // State of this rank's part is allocated (MemoryTag::optimizer, as lamb's direction is while an update lasts):
  // moments are zero, masters equal to the values. Keeps references to `plan`, `sums` and `store`.
  Optimizer(const OptimizerDeck& deck, const NumericsDeck& numerics, const UpdatePlan& plan, const TensorSums<T>& sums,
            ParamStore<T>& store, Pool& pool);

  // One step of this rank's part: w from reduced gradients times `scale` (the clip factor). `step` counts from 1
  // (AdamW's and LAMB's bias correction). Collective over the world for LARS and LAMB. With a sharded update the other
  // parts of the values are old until they are gathered (gather_values).
  void update(std::int64_t step, double rate, double scale);

  // Parameters have changed places (swap_places()): states() are listed anew, views of the same numbers.
  void follow_places();

  // Masters become equal to the values, which somebody has just set.
  void copy_to_masters();

  // What one update moves through memory: gradients are read, weights and states read and written (bf16 values written
  // only: their masters are among the states).
  std::int64_t update_bytes() const;

  // The kinds of state, on ranks that have no parameters too.
  const std::vector<std::string>& kinds() const { return kinds_; }
  // All kinds of all parameters, kind by kind in declaration order; empty for SGD.
  const std::vector<State>& states() const { return states_; }

 private:
  // Neighbours in a group's part that are updated alike: one kernel call.
  struct Run {
    std::size_t group = 0;
    Index begin = 0, size = 0;  // in the group's buffers
    double decay = 0;
    bool adapts = false;
    std::size_t tensor = 0;  // of TensorSums::tensors(), where it adapts
  };

  void make_runs();
  void make_states(Pool& pool, std::vector<Tensor<A>>& tensors, const char* kind);
  void list_states(const std::vector<Tensor<A>>& tensors, const std::string& kind);
  kernels::Vector<A> in_part(const std::vector<Tensor<A>>& tensors, const Run& run) const;
  kernels::Vector<A> masters(const Run& run) const;  // what the update is made on
  // |w| and |g| (lars), |w| and |u| (lamb) of every tensor, by TensorSums.
  std::vector<double> norms(double scale) const;

  OptimizerDeck deck_;
  NumericsDeck numerics_;
  const UpdatePlan& plan_;
  const TensorSums<T>& sums_;
  ParamStore<T>& store_;
  Pool& pool_;
  std::vector<Run> runs_;
  std::vector<Tensor<A>> first_, second_;  // per group; empty where the kind has none
  std::vector<Tensor<A>> masters_;         // per group; empty where values are stored as computed
  std::vector<Tensor<A>> direction_;       // per group, of lamb, while a step lasts
  std::vector<std::string> kinds_;
  std::vector<State> states_;
};

// After the update: every rank's part of the values to all ranks that sum the group's gradients. eager: complete on
// return. lazy: under way, one operation a group and level; Param::use() and ParamStore::finish_gathers() wait. Hidden
// is what lies between the update and a group's first use: reading samples, and for later groups the layers before. No
// buckets: parts are contiguous, a bucket of an all-gather brings a slice of each, and so the last parameter of the
// first part, 1/R of the model, would already wait for all of them.
template <class T>
void gather_values(const UpdatePlan& plan, ParamStore<T>& store, ValueGather when);

}  // namespace fourfold
