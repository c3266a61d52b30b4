// The router: which experts each token goes to, with what weights, and the losses that balance them.
//
//   logits = x Wg^T; scores = softmax | sigmoid of them; the top_k best experts of each token (ties to the lower one);
//   weights = their scores, or those over their sum
//
// Wg [E, D] is on every rank; its gradient is summed over all dense axes. Sums are of Acc<T>.
// Balance: coefficient x E sum_e f_e P_e over a scope's tokens, f_e = pairs that ask for e / (k tokens), P_e = mean of
// the scores as probabilities; f is a constant of its gradient. Scopes: the mean over the step's sequences, over its
// micro-batches, or one value for the step (whose forwards must all come before its first backward). And coefficient x
// mean over the step's tokens of lse(logits)^2.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "kernels/router.hpp"
#include "layers/moe/door.hpp"
#include "layers/moe/options.hpp"

namespace fourfold {

template <class T>
class Router {
 public:
  using A = kernels::Acc<T>;
  using DoorPlan = typename Door<T>::Plan;

  // What was decided for the tokens of one pass (RoutePlan), and what backward needs.
  struct Routing {
    Tensor<std::int32_t> choice;  // tokens x k
    Tensor<A> weights;            // tokens x k
    Tensor<A> logits, lse;        // tokens x E, tokens
    Tensor<double> aux;           // scopes x E: gradient of each token's probabilities
    Tensor<T> x, dlogits;         // for the weight gradient
    bool fresh = false;           // decided now, in training
    void hold(HeldBlocks& blocks) {
      choice.hold(blocks);
      weights.hold(blocks);
      logits.hold(blocks);
      lse.hold(blocks);
      aux.hold(blocks);
      x.hold(blocks);
    }
  };

  Router(const LayerContext<T>& context, const std::string& name, const MoeOptions& options,
         const InitializerFor& init);

  // x: tokens x D. `keeps`: a backward follows.
  Routing route(const PlannedPass<T>& pass, const DoorPlan& door, const Tensor<T>& x, bool keeps);
  // Partial input gradient, tokens x D, from that of the weights (tokens x k).
  Tensor<A> backward_input(const PlannedPass<T>& pass, const DoorPlan& door, const Tensor<A>& dweights,
                           Routing& routing);
  void backward_weight(Routing& routing) const;
  MoeCounts take_counts() { return std::exchange(counts_, fresh_counts()); }
  // The selection-only bias (bias_rate > 0): what is added to the scores where experts are chosen, nowhere else.
  const std::vector<double>& selection_bias() const { return selection_bias_; }
  void set_selection_bias(std::vector<double> bias);
  void count_arrivals(Index pairs) { counts_.received += static_cast<double>(pairs); }

 private:
  struct Decision {
    Tensor<std::int32_t> choice;
    Tensor<double> aux;
  };
  MoeCounts fresh_counts() const;
  kernels::Matrix<const T> gate() const;
  Tensor<T> jittered(const PlannedPass<T>& pass, const DoorPlan& door, const Tensor<T>& x) const;
  Tensor<std::int32_t> choose(const PlannedPass<T>& pass, const DoorPlan& door, const Tensor<A>& logits,
                              const Tensor<A>& scores) const;
  Tensor<double> count(const PlannedPass<T>& pass, const DoorPlan& door, const Tensor<A>& scores,
                       const Tensor<A>& total, const Tensor<A>& lse, const Tensor<std::int32_t>& choice);
  double token_share(const PlannedPass<T>& pass) const;
  Tensor<double> balance_gradient(std::vector<double> shares, const Communicator& group, double weight);

  LayerContext<T> context_;
  std::string name_;
  MoeOptions options_;
  Param<T>* gate_;
  MoeCounts counts_;
  std::vector<double> selection_bias_;  // E, or none
  // Decisions of forwards that run again before their backward, by the first sample and the sequences of the batch.
  std::map<std::pair<Index, Index>, Decision> decisions_;
  std::uint64_t step_ = 0;  // of decisions_
  // Scope global_batch: this rank's sums of the step's forwards, and what they came to at its first backward.
  std::vector<double> step_sums_;
  Tensor<double> step_aux_;
  std::uint64_t summed_step_ = 0, reduced_step_ = 0;
};

}  // namespace fourfold
