// model.moe: layers that are mixtures of experts, in place of feed-forward layers.
#pragma once

#include <cstdint>

namespace fourfold {

enum class ScoreKind { softmax, sigmoid };
// What capacity counts over: each sequence, or a micro-batch of all ranks.
enum class CapacityScopeKind { sequence, micro_batch };
enum class CapacityPriorityKind { position, probability };
enum class DispatcherKind { allgather, alltoall, hierarchical };
// Where the router's weight is applied: to an expert's outputs, or before its second product.
enum class PermuteKind { plain, fused_weight };
// Over what the auxiliary loss takes its means: each sequence, each micro-batch of all ranks, all of a step.
enum class BalanceScopeKind { sequence, micro_batch, global_batch };
enum class ForcedRoutingKind { none, uniform, zipf };

struct CapacityDeck {
  double factor = 0.0;  // an expert takes factor x top_k x tokens / experts pairs, rounded up; 0: all (dropless)
  CapacityScopeKind scope = CapacityScopeKind::sequence;
  CapacityPriorityKind priority = CapacityPriorityKind::position;
  bool operator==(const CapacityDeck&) const = default;
};

struct BalanceDeck {
  double aux = 0.0;  // factor of the auxiliary loss
  BalanceScopeKind scope = BalanceScopeKind::sequence;
  double z = 0.0;          // factor of the z-loss
  double bias_rate = 0.0;  // of balancing by a bias on the selection, without a loss
  bool operator==(const BalanceDeck&) const = default;
};

struct ForcedDeck {
  ForcedRoutingKind routing = ForcedRoutingKind::none;
  double exponent = 1.0;  // of zipf
  bool operator==(const ForcedDeck&) const = default;
};

// Experts of busy ranks change places with those of others, by the loads since the last look.
struct MigrationDeck {
  std::int64_t every = 0;    // steps from look to look; 0: never
  double tau = 1.1;          // of a rank's largest load over the mean: swaps go on while it is above
  std::int64_t budget = 16;  // swaps of a layer at a look, at most
  bool operator==(const MigrationDeck&) const = default;
};

struct MoeDeck {
  std::int64_t every = 1, experts = 0, top_k = 2;
  std::int64_t hidden = 0;  // of an expert; default: model.ffn.hidden
  ScoreKind score = ScoreKind::softmax;
  bool renormalize = true;
  double jitter = 0.0;
  std::int64_t groups = 1, top_groups = 1;
  std::int64_t shared_hidden = 0;  // 0: no shared expert
  bool shared_gate = false;
  CapacityDeck capacity;
  DispatcherKind dispatcher = DispatcherKind::alltoall;
  PermuteKind permute = PermuteKind::plain;
  BalanceDeck balance;
  ForcedDeck forced;
  MigrationDeck migration;
  bool operator==(const MoeDeck&) const = default;
};

}  // namespace fourfold
