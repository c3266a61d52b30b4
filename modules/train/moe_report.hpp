// What the mixtures of experts of all stages did in a step: their losses, how even their loads were, what was dropped.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "comm/communicator.hpp"
#include "deck/deck.hpp"
#include "layers/moe/options.hpp"

namespace fourfold {

struct MoeLayerReport {
  std::int64_t layer = 0;     // number of the block
  double aux = 0, z = 0;      // the two losses, without their factors
  double dropped = 0;         // share of the pairs of token and expert
  double max_load = 0;        // of the experts' pairs, over the mean; dropped ones included
  double entropy = 0;         // of the router's probabilities, nats, mean over tokens
  std::vector<double> pairs;  // by expert
};

// By number of the block; empty: there are none.
using MoeReport = std::vector<MoeLayerReport>;

// Numbers of the blocks with experts.
std::vector<std::int64_t> layers_with_experts(const ModelDeck& model);

// Collective over the world, on stages without experts too: what is summed has the size of the whole model's counts.
// `mine`: of the layers of this rank's stage, by number of the block. The same result on all ranks. Errors: fail_all
// (error): a layer's ranks received another number of pairs than its tokens asked for, less those dropped.
MoeReport moe_report(const Communicator& world, const ModelDeck& model,
                     const std::vector<std::pair<std::int64_t, MoeCounts>>& mine);

// E sum_e f_e P_e of all layers together, and the z-losses, without their factors.
double aux_loss(const MoeReport& report);
double z_loss(const MoeReport& report);

}  // namespace fourfold
