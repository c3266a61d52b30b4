// What one rank of the dense grid holds of a deck's model, counted without building it: exact, and held equal to the
// memory ledger of real runs by a test. All layers, as with one stage; of a mixture of experts the norm before it only.
#pragma once

#include <cstdint>
#include <map>

#include "deck/deck.hpp"
#include "grid/process_grid.hpp"

namespace fourfold {

// Whether block `layer` (from 0) has a mixture of experts in place of its feed-forward layer.
bool has_experts(const ModelDeck& model, std::int64_t layer);

// Elements of its parameters, by the group of ranks over which their gradients are summed (a reduction group of
// ParamStore).
std::map<GroupKey, std::int64_t> held_parameters(const Deck& deck, const Coordinates& here);

// Elements that forward keeps for backward, of a micro-batch of `sequences` sequences (samples of an mlp).
struct KeptElements {
  std::int64_t compute = 0;     // of the compute type: activations
  std::int64_t accumulate = 0;  // of the accumulate type: statistics of norms, attention and the loss
};
KeptElements kept_for_backward(const Deck& deck, const Coordinates& here, std::int64_t sequences);

}  // namespace fourfold
