// Movements: every exchange of activations or weights between ranks is an object with `forward` and `adjoint`. A layer
// is movement, local product, movement; its backward is the chain of adjoints (Hewett et al., "A linear algebraic
// approach to model parallelism", 2020). An element that a partition replicates counts once in the inner product.
//
//   Copy    forward: every rank of the group uses its replica            adjoint: sum of the ranks' contributions
//   Sum     forward: sum of the ranks' partial results, on every rank    adjoint: every rank uses its replica
//   Gather  forward: parts side by side, on every rank                   adjoint: sum, and each rank keeps its part
//
// A group of one rank moves nothing.
#pragma once

#include "comm/code_place.hpp"
#include "comm/collectives.hpp"
#include "tensor/tensor.hpp"

namespace fourfold {

using Where = CodePlace;  // of the layer that moves: hang reports name it

// Sums are made in the type of accumulation, whatever the compute type T: A is Acc<T>.
//
// The same sum serves Copy's adjoint and Sum's forward: in place, over the group.
template <class A>
void sum_over(const Communicator& group, const Tensor<A>& x, Summation summation, CallSite site);
template <class A>
Pending start_sum_over(const Communicator& group, const Tensor<A>& x, Summation summation, CallSite site);

// Replicas of x over the group. forward is free.
template <class A>
class Copy {
 public:
  Copy(const Communicator& group, Summation summation) : group_(&group), summation_(summation) {}
  void adjoint(const Tensor<A>& dx, Where where = Where::current()) const { start_adjoint(dx, where).wait(); }
  Pending start_adjoint(const Tensor<A>& dx, Where where = Where::current()) const {
    return start_sum_over(*group_, dx, summation_, {Phase::backward, where});
  }
  int ranks() const { return group_->size(); }

 private:
  const Communicator* group_;
  Summation summation_;
};

// Partial results to their sum. adjoint is free.
template <class A>
class Sum {
 public:
  Sum(const Communicator& group, Summation summation) : group_(&group), summation_(summation) {}
  void forward(const Tensor<A>& y, Where where = Where::current()) const {
    sum_over(*group_, y, summation_, {Phase::forward, where});
  }
  int ranks() const { return group_->size(); }

 private:
  const Communicator* group_;
  Summation summation_;
};

// `total` elements cut over the group by quotient and remainder (grid/partition.hpp).
template <class T>
class Gather {
 public:
  Gather(const Communicator& group, Index total, Summation summation);
  // part: this rank's elements; whole: total elements. `site`: forward, or backward where weights are gathered again.
  Pending start_forward(kernels::Vector<const T> part, kernels::Vector<T> whole, CallSite site) const;
  // part = this rank's elements of the sum over ranks of `whole`.
  Pending start_adjoint(kernels::Vector<const kernels::Acc<T>> whole, kernels::Vector<kernels::Acc<T>> part,
                        Where where = Where::current()) const;
  int ranks() const { return group_->size(); }

 private:
  const Communicator* group_;
  std::vector<std::int64_t> sizes_;
  Summation summation_;
};

}  // namespace fourfold
