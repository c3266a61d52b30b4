// Sums over the elements of whole logical tensors, whatever they are split over: each element once.
//
// Which elements a rank counts follows from structure (owner, axes of the gradient's sum, its part of the update),
// never from which gradients happen to be present: an expert without tokens adds zero, and no rank waits for another.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/grid_comms.hpp"
#include "optim/update_plan.hpp"
#include "tensor/param.hpp"

namespace fourfold {

// The elements of a parameter that lie in this rank's part of the update, counted from the parameter's first; empty
// ranges are ordinary.
template <class T>
Range range_in_part(const Param<T>& param, const GroupPlan& plan);

// The elements [range.begin, range.end) of a shard, as a shard of the same tensor.
inline Shard part_of_shard(Shard shard, Range range) {
  shard.flat = {shard.flat.begin + range.begin, shard.flat.begin + range.end};
  return shard;
}

// A parameter of the model, wherever it lies.
struct ModelTensor {
  std::string name;
  std::vector<std::int64_t> shape;  // logical
};

// Collective over `world`: all tensors of all stages in one order on every rank, by unit of the model, then as declared
// (by the lowest rank that has the unit): the same order however the model is cut.
template <class T>
std::vector<ModelTensor> agree_on_tensors(const Communicator& world, const ParamStore<T>& store);

template <class T>
class TensorSums {
 public:
  // Collective over the grid. Keeps references.
  TensorSums(const UpdatePlan& plan, const GridComms& comms, const ParamStore<T>& store);

  // `kinds` sums at once. `local(param, range, sums)` adds to sums[0], ..., sums[kinds - 1] what the elements of
  // `range` contribute. Result: tensor by tensor in global order, `kinds` numbers each, the same on every rank: added
  // in rank order.
  using Local = std::function<void(const Param<T>& param, Range range, double* sums)>;
  std::vector<double> compute(std::size_t kinds, const Local& local) const;

  const std::vector<std::string>& tensors() const { return names_; }
  // Of this rank's param (in declaration order) in tensors().
  std::size_t place(std::size_t param) const { return places_[param]; }

 private:
  const UpdatePlan& plan_;
  const GridComms& comms_;
  const ParamStore<T>& store_;
  std::vector<std::string> names_;   // all tensors of the model in global order
  std::vector<std::size_t> places_;  // of this rank's params in it
};

}  // namespace fourfold
