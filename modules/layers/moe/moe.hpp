// Mixture of experts: y = sum over the chosen experts of weight x expert(x), and a shared feed-forward beside them.
//
//   door -> router -> dispatch over expert -> exchange over moe_col, gather over moe_row -> experts -> the way back
//
// (Singh et al. 2024 for the grids; the parts as in Megatron Core's MoE.) The layer stands where a FeedForward can: x
// and y are the residual stream. Its experts live on the MoE grid replica x expert x moe_row x moe_col of the stage's
// ranks, whatever the dense grid.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "layers/moe/options.hpp"
#include "layers/moe/places.hpp"
#include "layers/unit.hpp"

namespace fourfold {

template <class T>
class MoeLayer {
 public:
  // What forward leaves for the input gradient, and that for the weight gradients.
  class Kept {
   public:
    Kept();
    Kept(Kept&&) noexcept;
    Kept& operator=(Kept&&) noexcept;
    ~Kept();
    void hold(HeldBlocks& blocks);

   private:
    friend class MoeLayer;
    struct Tensors;
    std::unique_ptr<Tensors> tensors_;
  };

  // Parameters: name + ".router.weight" [E, D], ".experts.e.up.weight" [H, D], ".gate.weight" (SwiGLU),
  // ".down.weight" [D, H] and their ".bias", ".shared.*" as a FeedForward's, ".shared_gate.weight" [1, D]. Every rank
  // declares all of them in this order; those of experts that others hold are empty.
  MoeLayer(const LayerContext<T>& context, const std::string& name, const MoeOptions& options,
           const InitializerFor& init);
  MoeLayer(const MoeLayer&) = delete;
  MoeLayer& operator=(const MoeLayer&) = delete;
  ~MoeLayer();

  // x, y: rows of the stream x D/col. kept null: nothing is kept. A training pass decides where tokens go once: a
  // forward that runs again follows the first one's decision until one has kept it (kept not null), and is not counted.
  Tensor<T> forward(const PlannedPass<T>& pass, const Tensor<T>& x, Kept* kept);
  Tensor<T> backward_input(const PlannedPass<T>& pass, const Tensor<T>& dy, Kept& kept);
  void backward_weight(Kept& kept);

  Index input_cols() const;
  const MoeOptions& options() const;
  // Since the last call, of training passes.
  MoeCounts take_counts();

  // With balance.bias_rate: what is added to the scores where experts are chosen, by expert; zeros at first, equal on
  // all ranks. After a step, from its pairs by expert over the whole stage:
  //   bias += rate (sign(mean - pairs) - the mean of these signs)
  const std::vector<double>& selection_bias() const;
  void set_selection_bias(std::vector<double> bias);
  void update_selection_bias(const std::vector<double>& pairs);

  // Which rank holds which expert.
  const ExpertPlaces& places() const;
  // An expert's parameters; empty where another rank has it. In the same order for all of them.
  std::vector<Param<T>*> expert_params(Index expert) const;
  // Two experts, and all their parameters, change places; the numbers are moved by others (train/expert_mover.hpp). No
  // pass is under way.
  void swap_experts(Index a, Index b);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace fourfold
