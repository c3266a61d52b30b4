// Parameters and where they live. A layer declares its parameters; the store lays them out, one flat buffer of values
// and one of gradients for each reduction group (parameters of one chunk whose gradients are summed over the same
// axes), in declaration order. One reducer reads the groups; a layer only scatters its weights' gradients over depth,
// the adjoint of gathering them.
//
// Values may still be on their way from the ranks that updated them (optimizer.gather: lazy). Whoever reads values asks
// Param::use(), or calls ParamStore::finish_gathers() first.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "comm/collectives.hpp"
#include "grid/axes.hpp"
#include "grid/partition.hpp"
#include "tensor/tensor.hpp"

namespace fourfold {

// The initial values of the elements from a given row-major index on in the logical tensor: each a function of the
// seed, the parameter's name and its own index, never of the grid.
using Initializer = std::function<void(std::int64_t first, std::span<double> values)>;
inline Initializer constant_initializer(double value) {
  return [value](std::int64_t, std::span<double> values) { std::fill(values.begin(), values.end(), value); };
}

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
  Index unit = 0;       // of the model: parameters are ordered by it, then as declared
  kernels::Vector<T> value;
  kernels::Vector<kernels::Acc<T>> grad;
  bool grad_is_old = false;           // the next contribution overwrites it
  Index group = 0;                    // index in ParamStore::groups()
  Index group_offset = 0;             // of its first element in the group's buffers
  std::shared_ptr<Pending> arriving;  // of its group: the gather of values that others updated

  // The values, once they have arrived.
  const kernels::Vector<T>& use() const {
    arriving->wait();
    return value;
  }

  // How the next contribution to the gradient is written: the first of a step overwrites the last step's.
  kernels::Write next_write() {
    return std::exchange(grad_is_old, false) ? kernels::Write::overwrite : kernels::Write::add;
  }
};

// Of parameters that are always written together.
template <class T>
kernels::Write next_write(const std::vector<Param<T>*>& params) {
  auto write = kernels::Write::add;
  for (Param<T>* param : params) {
    const kernels::Write its = param->next_write();
    FOURFOLD_ASSERT(param == params.front() || its == write, "fused gradients are written together");
    write = its;
  }
  return write;
}

// The two change places in their group's buffers, and what each holds of its tensor; their shapes are the same. Numbers
// stay where they are.
template <class T>
void swap_places(Param<T>& a, Param<T>& b) {
  FOURFOLD_ASSERT(a.group == b.group && a.spec.shard.shape == b.spec.shard.shape, "parameters that can change places");
  std::swap(a.spec.shard, b.spec.shard);
  std::swap(a.value, b.value);
  std::swap(a.grad, b.grad);
  std::swap(a.grad_is_old, b.grad_is_old);
  std::swap(a.group_offset, b.group_offset);
}

// The flat buffers of one reduction group; params are side by side in declaration order (until swap_places()), padding
// (zeros) after them.
template <class T>
struct ParamGroup {
  GroupKey sum_over;
  int chunk = 0;   // of the stage, whose gradients are complete together; kSharedChunk
  Index size = 0;  // elements of the params; the buffers may be longer
  Tensor<T> values;
  Tensor<kernels::Acc<T>> grads;
  std::vector<Param<T>*> params;
  std::shared_ptr<Pending> arriving;
};

// Into how many equal parts the buffers of a group are cut: they are padded to a multiple of it.
using PartsOfGroup = std::function<std::int64_t(const GroupKey&)>;
// The ranks whose gradients of a group are summed: their values are equal.
using SharersOfGroup = std::function<const Communicator&(const GroupKey&)>;

// In place of a chunk: of parameters that several chunks use, here or on another stage.
inline constexpr int kSharedChunk = -1;

template <class T>
class ParamStore {
 public:
  // What is declared from now on belongs to this unit of the model and chunk of the stage; both are 0 at first.
  void begin(Index unit, int chunk);
  // The handle stays valid for the store's life; its views are set by allocate(). Errors: assertion on a name twice.
  Param<T>* declare(ParamSpec&& spec);
  // Lays out and fills the initial values; gradients are zero. Once, after the last declaration. An empty `parts`: no
  // padding. Where there are `sharers`, each of a group's makes a part of the initial values and gets the others'
  // (collective); else each rank makes all of its own.
  void allocate(Pool& pool, const PartsOfGroup& parts = {}, const SharersOfGroup& sharers = {});
  // A step begins: gradients are those of the last one until Param::next_write() says that they were written.
  void restart_gradients();
  // It is over, for a group's parameters: gradients that nobody wrote become zero.
  static void finish_gradients(ParamGroup<T>& group);
  void finish_gathers();

  std::deque<Param<T>>& params() { return params_; }
  const std::deque<Param<T>>& params() const { return params_; }
  std::vector<ParamGroup<T>>& groups() { return groups_; }
  const std::vector<ParamGroup<T>>& groups() const { return groups_; }

 private:
  Index unit_ = 0;
  int chunk_ = 0;
  std::vector<int> chunks_;  // of params_
  std::deque<Param<T>> params_;
  std::vector<ParamGroup<T>> groups_;
};

}  // namespace fourfold
