// What one rank holds of its stage's part of a deck's model, counted without building it: exact, and
// held equal to the memory ledger of real runs by a test. Of a mixture of experts with even loads.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "deck/deck.hpp"
#include "grid/process_grid.hpp"
#include "model/stage_part.hpp"

namespace fourfold {

// Whether block `layer` (from 0) has a mixture of experts in place of its feed-forward layer.
bool has_experts(const ModelDeck& model, std::int64_t layer);

// Elements of its parameters, by chunk of the stage (-1: shared by several) and the group of ranks over which their
// gradients are summed: a reduction group of ParamStore.
using HeldGroups = std::map<std::pair<int, GroupKey>, std::int64_t>;
HeldGroups held_parameters(const Deck& deck, const Coordinates& here, const StagePart& part);

// Elements of one expert on this rank.
std::int64_t expert_elements(const Deck& deck, const Coordinates& here);

// Whether a part of a unit runs forward again before its backward.
bool runs_again(const Deck& deck, std::int64_t unit, Keeping keeping);

// Elements that a unit holds of a micro-batch of `sequences` sequences (samples):
//   backward  from the forward pass to the backward, by parallel.activations
//   whole     all that its backward reads: once what was left out has been computed again
//   weights   where the schedule runs weight gradients by themselves: from the input gradient to those
//   gradient  that of its output, where a unit follows
enum class KeptFor { backward, whole, weights, gradient };
struct KeptElements {
  std::int64_t compute = 0;     // of the compute type: activations
  std::int64_t accumulate = 0;  // of the accumulate type: statistics of norms, attention, routers and the loss
  std::int64_t bytes = 0;       // of whole numbers and doubles, whatever the types: where tokens go
};
KeptElements kept_elements(const Deck& deck, const Coordinates& here, std::int64_t sequences, std::int64_t unit,
                           KeptFor what);

}  // namespace fourfold
