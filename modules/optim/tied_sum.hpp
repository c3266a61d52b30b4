// A matrix that two stages of different grids hold (tied embeddings): when each has summed its gradient over its own
// ranks, the two exchange these sums, element by element of the logical matrix, and both add. Afterwards both hold the
// same sums, and both update their values alike.
#pragma once

#include <vector>

#include "comm/grid_comms.hpp"
#include "optim/update_plan.hpp"
#include "tensor/crossing.hpp"
#include "tensor/param.hpp"

namespace fourfold {

template <class T>
class TiedSum {
 public:
  // Collective over the ranks of stage 0 and `stage`, this rank among them; the matrix is the one parameter of their
  // group kSharedChunk. Keeps references.
  TiedSum(const UpdatePlan& plan, const GridComms& comms, ParamStore<T>& store, int stage, Pool& pool);

  std::size_t group() const { return group_; }  // of the store
  // Collective over the two stages: adds to the part of the gradient that the plan's sums leave on this rank.
  void add() const;

 private:
  Communicator both_;
  Pool& pool_;
  std::size_t group_ = 0;
  kernels::Vector<kernels::Acc<T>> part_;
  std::vector<CrossingPiece> send_, receive_;  // peers are ranks of both_
};

}  // namespace fourfold
