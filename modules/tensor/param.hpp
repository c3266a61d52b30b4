// Parameters and where they live. A layer declares its parameters; the store lays them out, one flat buffer of values
// and one of gradients for each reduction group (parameters whose gradients are summed over the same axes), in
// declaration order. One reducer reads the groups; a layer only scatters its weights' gradients over depth, the adjoint
// of gathering them.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "grid/axes.hpp"
#include "grid/partition.hpp"
#include "tensor/tensor.hpp"

namespace fourfold {

// The initial value of the element with a given row-major index in the logical tensor: a function of the seed and the
// parameter's name, never of the grid.
using Initializer = std::function<double(std::int64_t global_index)>;

struct ParamSpec {
  std::string name;   // global, without a rank: "layers.3.attention.q.weight"
  Shard shard;        // what this rank holds of the logical tensor
  GroupKey sum_over;  // the axes, or parts of one, over which this rank's gradient is partial
  bool owner = true;  // this rank counts the shard in norms and writes it in checkpoints (one among its replicas but
                      // for the axes in sum_over, where coordinate 0 owns)
  Initializer init;
};

// T: compute type. Gradients are kept in the accumulate type.
template <class T>
struct Param {
  ParamSpec spec;
  bool decays = false;  // weight decay: tensors of two or more dims
  kernels::Vector<T> value;
  kernels::Vector<kernels::Acc<T>> grad;
  Index group = 0;         // index in ParamStore::groups()
  Index group_offset = 0;  // of its first element in the group's buffers
};

// The flat buffers of one reduction group; params are side by side in declaration order.
template <class T>
struct ParamGroup {
  GroupKey sum_over;
  Tensor<T> values;
  Tensor<kernels::Acc<T>> grads;
  std::vector<Param<T>*> params;
};

template <class T>
class ParamStore {
 public:
  // The handle stays valid for the store's life; its views are set by allocate(). Errors: assertion on a name twice.
  Param<T>* declare(ParamSpec&& spec);
  // Lays out and fills the initial values; gradients are zero. Once, after the last declaration.
  void allocate(Pool& pool);
  void zero_gradients();

  std::deque<Param<T>>& params() { return params_; }
  const std::deque<Param<T>>& params() const { return params_; }
  std::vector<ParamGroup<T>>& groups() { return groups_; }

 private:
  std::deque<Param<T>> params_;
  std::vector<ParamGroup<T>> groups_;
};

}  // namespace fourfold
