// A unit is what stages are cut between: the embedding, a block, the head, a matrix of an MLP.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "layers/rows.hpp"

namespace fourfold {

// What a unit keeps from forward to backward, and from backward_input to backward_weight.
struct Kept {
  virtual ~Kept() = default;
  // Adds every block that forward left; one that several tensors share as often.
  virtual void hold(HeldBlocks& blocks) = 0;
};

// A pass with the rows this rank has in it.
template <class T>
struct PlannedPass : Pass<T> {
  RowPlan<T> rows;
};

template <class T>
class MoeLayer;

template <class T>
class Unit {
 public:
  explicit Unit(std::string name) : name_(std::move(name)) {}
  virtual ~Unit() = default;
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  const std::string& name() const { return name_; }  // "layers.3"
  virtual Index input_cols() const = 0;              // of x on this rank; 0: the first unit, which has none

  // x: in, the input (unused by the first unit, which reads pass.batch); out, the output. Returns what backward needs,
  // or null unless pass.keeps(). Can be run again on the same input with the same result. Zero rows are legal.
  virtual std::unique_ptr<Kept> forward(const PlannedPass<T>& pass, Tensor<T>& x, LossSum& loss) = 0;
  // Whether forward keeps less than backward needs (parallel.activations.sublayers); then recompute() runs those parts
  // again before the input gradient.
  virtual bool recomputes() const { return false; }
  virtual void recompute(const PlannedPass<T>&, Kept&) {}
  // Its mixture of experts, or null.
  virtual MoeLayer<T>* experts() { return nullptr; }
  // dx: in, the gradient of the output (unused by the last unit); out, the gradient of the input.
  virtual void backward_input(const PlannedPass<T>& pass, Kept& kept, Tensor<T>& dx) = 0;
  // Adds to the gradients of the parameters.
  virtual void backward_weight(const PlannedPass<T>& pass, Kept& kept) = 0;

 private:
  std::string name_;
};

}  // namespace fourfold
