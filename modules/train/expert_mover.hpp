// Experts from rank to rank: their weights, all optimizer states and masters. Gradients stay: a step's are dead once it
// is over.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "comm/grid_comms.hpp"
#include "layers/moe/moe.hpp"
#include "optim/optimizer.hpp"
#include "optim/update_plan.hpp"
#include "tensor/param.hpp"

namespace fourfold {

template <class T>
class ExpertMover {
  using A = kernels::Acc<T>;

 public:
  // Keeps references.
  ExpertMover(const GridComms& comms, const UpdatePlan& plan, ParamStore<T>& store, Optimizer<T>& optimizer, Pool& pool)
      : comms_(comms), plan_(plan), store_(store), optimizer_(optimizer), pool_(pool) {}

  // The layer's experts change places, pair by pair in this order. Between two steps; collective over the ranks of
  // replica x expert (a group of `comms`). Takes buffers (MemoryTag::buffers) of one kind of the moving numbers at a
  // time. Views that others keep on parameters or states are old afterwards (SavedTensors::follow_places()). Returns
  // the bytes that this rank sent.
  std::int64_t swap(MoeLayer<T>& layer, const std::vector<std::pair<Index, Index>>& swaps);

 private:
  // What this rank has of one kind of numbers of a parameter: of its elements those of `range`.
  template <class E>
  struct Held {
    Range range;
    kernels::Vector<E> values;
  };
  Held<T> values_of(const Param<T>& param) const;
  std::vector<Held<A>> states_of(const std::vector<Param<T>*>& params, const std::string& kind) const;
  template <class E>
  std::int64_t exchange(const std::vector<Held<E>>& before, const std::vector<Held<E>>& after) const;

  const GridComms& comms_;
  const UpdatePlan& plan_;
  ParamStore<T>& store_;
  Optimizer<T>& optimizer_;
  Pool& pool_;
};

}  // namespace fourfold
