// What a mixture of experts is made with, and what it reports.
#pragma once

#include <vector>

#include "layers/feed_forward.hpp"

namespace fourfold {

// Scores of a token over the experts, from the router's logits.
enum class RouterScore { softmax, sigmoid };
enum class DispatcherType { allgather, alltoall, hierarchical };
enum class CapacityScope { sequence, micro_batch };
// Which of the pairs of token and expert are kept, within a capacity's scope: the first ones in token order, or those
// of the highest scores.
enum class CapacityPriority { position, probability };
enum class BalanceScope { sequence, micro_batch, global_batch };
enum class ForcedRouting { none, uniform, zipf };

struct MoeOptions {
  Index width = 0, experts = 0, hidden = 0, top_k = 0;  // D, E, H, k
  ActivationType activation = ActivationType::swiglu;
  bool bias = false;
  DispatcherType dispatcher = DispatcherType::alltoall;
  bool fused_weight = false;  // weights multiply the hidden activation; not with a bias

  RouterScore score = RouterScore::softmax;
  bool renormalize = true;  // the weights of a token's k experts sum to one
  double jitter = 0;        // the router's input is multiplied by draws from [1 - jitter, 1 + jitter), in training
  // Experts in `groups` equal groups, of which a token's experts are in the `top_groups` best: by their highest score
  // (softmax), or by the sum of their two highest (sigmoid).
  Index groups = 1, top_groups = 1;

  struct Capacity {
    double factor = 0;  // 0: dropless. Else an expert takes ceil(factor k tokens / E) pairs of a scope's tokens
    CapacityScope scope = CapacityScope::micro_batch;
    CapacityPriority priority = CapacityPriority::position;
  } capacity;
  struct Balance {
    double aux = 0;  // coefficient of E sum_e f_e P_e
    BalanceScope scope = BalanceScope::sequence;
    double z = 0;          // coefficient of the mean over tokens of logsumexp(logits)^2
    double bias_rate = 0;  // of the selection-only bias; 0: none
  } balance;
  struct Forced {
    ForcedRouting kind = ForcedRouting::none;
    double exponent = 1;  // zipf: expert e is drawn with a weight of (e + 1)^-exponent
  } forced;

  Index shared_hidden = 0;  // of the shared experts together; 0: none
  bool shared_gate = false;
};

// What a layer saw in the training passes of this rank since it was last asked. Sums over the stage's ranks are the
// layer's; each token counts once, recompute or not.
struct MoeCounts {
  std::vector<double> pairs;          // E: chosen, dropped ones included
  std::vector<double> probabilities;  // E: sums over tokens of the scores as probabilities
  double tokens = 0, dropped = 0;     // tokens; pairs beyond the capacity
  double received = 0;                // pairs that came to this rank over `expert`
  double entropy = 0;                 // sum over tokens, of the probabilities, in nats
  double aux = 0, z = 0;              // shares of the two losses, without their coefficients
};

}  // namespace fourfold
