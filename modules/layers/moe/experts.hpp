// The experts of this rank as grouped products on the MoE grid's row x col: Linear's products on runs of rows.
//
//   up    : H cut over moe_row, D over moe_col (with SwiGLU gate and up in one product); summed over moe_col
//   down  : D cut over moe_col, H over moe_row; partial over moe_row, which the way back sums
//
// Backward is the adjoint: the gradient of the hidden activation is summed over moe_col, the input's stays partial over
// moe_row. Biases: up's is added after the sum, down's by the first moe_row rank.
#pragma once

#include <string>
#include <vector>

#include "layers/context.hpp"
#include "layers/moe/dispatcher.hpp"

namespace fourfold {

template <class T>
class Experts {
 public:
  using A = kernels::Acc<T>;
  struct Kept {
    Tensor<T> x;       // rows x D/moe_col
    Tensor<T> up;      // before the activation
    Tensor<T> hidden;  // after it, times the row's weight where there is one
    Tensor<T> dup, dy;
    std::vector<Index> begin;  // first row of each expert, and the end
    void hold(HeldBlocks& blocks) {
      x.hold(blocks);
      up.hold(blocks);
      hidden.hold(blocks);
    }
  };

  // Declares the parameters of all experts: name + ".e.gate.weight" ...
  Experts(const LayerContext<T>& context, const std::string& name, const MoeOptions& options,
          const ExpertPlaces& places, const InitializerFor& init);

  // begin: first row of each of this rank's experts, and the end. x: rows x D/moe_col. weights: a factor of each row's
  // hidden activation; empty: ones. Result: rows x D/moe_col, partial.
  Tensor<A> forward(const std::vector<Index>& begin, const Tensor<T>& x, const Tensor<A>& weights, Kept* kept) const;
  // dweights: with weights, their gradient, partial over moe_row.
  Tensor<A> backward_input(const Tensor<T>& dy, const Tensor<A>& weights, Kept& kept, Tensor<A>* dweights) const;
  void backward_weight(Kept& kept) const;

  // An expert's parameters; empty where another rank has it. In the same order for all of them.
  std::vector<Param<T>*> params(Index expert) const;

 private:
  // Of one expert: gate (or none) and up side by side in both.
  struct Expert {
    std::vector<Param<T>*> up, up_bias;
    std::vector<Param<T>*> down, down_bias;
  };
  template <class F>
  void for_each_expert(const std::vector<Index>& begin, const F& f) const;
  void count_products(const std::vector<Index>& begin, Index rows, Index cols) const;

  LayerContext<T> context_;
  ActivationType activation_;
  bool bias_;
  Index width_, hidden_;  // held: D/moe_col, H/moe_row
  Index up_rows_;         // of the product with up (and gate)
  const ExpertPlaces& places_;
  std::vector<Expert> experts_;  // of all; the parameters of others' are empty
};

}  // namespace fourfold
