// Parameters and optimizer states as a checkpoint sees them: whole logical tensors, /params/NAME and
// /optimizer/KIND/NAME; and the biases of the choice of experts (model.moe.balance.bias_rate), which no gradient moves,
// as /params/layers.N.moe.router.selection_bias.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "comm/grid_comms.hpp"
#include "model/model.hpp"
#include "optim/optimizer.hpp"
#include "optim/tensor_sums.hpp"
#include "tensor/param.hpp"

namespace fourfold {

// Where several ranks have the same flat buffer of a reduction group, each writes its part of it. Keeps views on the
// store.
template <class T>
class SavedTensors {
 public:
  // Without an optimizer: parameters alone (load with {"/optimizer"} skipped). Keeps a reference to `model`.
  // Collective over the grid: tensors of other stages are listed too, empty.
  SavedTensors(Model<T>& model, const Optimizer<T>* optimizer, const GridComms& comms);
  // Also the reduced gradients of the last step, /gradients/NAME, before clipping: a record to compare runs by. Each
  // rank has those of its part of the update.
  void add_gradients(const UpdatePlan& plan);

  // Experts have changed places: the shards are listed anew, views of what this rank has now.
  void follow_places();

  const std::vector<checkpoint::NamedShard>& shards() const { return shards_; }
  void to_host() const;    // before a save; waits for values that are under way
  void to_device() const;  // after a load; waits until they are there

 private:
  struct Copies {
    std::function<void()> to_host, to_device;
  };
  void list();
  void add_states();
  void list_gradients(const UpdatePlan& plan);
  void add_missing(const std::string& kind, checkpoint::ElementType type);
  void add_selection_biases(const Coordinates& here);
  // Of shard's elements those are written here that lie in this rank's part of `flat`, a range of the group's buffers
  // that `copies` all have (nullptr: this rank alone); the shard begins at `place` of the buffers.
  template <class E>
  void add(const std::string& name, const Shard& shard, const Param<T>& param, Range flat, Index place,
           const Communicator* copies, kernels::Vector<E> values);

  Model<T>& model_;
  const Optimizer<T>* optimizer_;
  const GridComms& comms_;
  const UpdatePlan* gradients_ = nullptr;   // by which they are here; null: without them
  std::vector<ModelTensor> missing_;        // here, of the model
  std::deque<std::vector<double>> biases_;  // in the host's memory; addresses stay
  std::vector<Copies> copies_;              // of the biases
  std::vector<checkpoint::NamedShard> shards_;
};

}  // namespace fourfold
