// What the deck's model costs, without building it: needs neither MPI nor Kokkos (`fourfold check`, planners).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "deck/deck.hpp"
#include "graph/graph.hpp"
#include "grid/process_grid.hpp"
#include "model/held.hpp"
#include "model/stage_part.hpp"

namespace fourfold {

// The layers in the order of the forward pass, named as their parameters. `model` has passed the reader's checks.
Graph describe(const ModelDeck& model);

// Bytes of one rank. Exact on every grid; of a mixture of experts the activations are those of even loads: as many
// pairs of token and expert to each expert. activations: what forward keeps for backward; not the copies that the peak
// of a step adds, nor the buffers of communication, of what waits between model chunks, and of single kernels.
struct MemoryPerRank {
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
  std::int64_t activations = 0;
  std::int64_t update = 0;  // lamb's direction, while an update lasts: no activation does
  // What leaves and comes while experts change ranks (model.moe.migration), at most: no activation lasts meanwhile.
  std::int64_t migration = 0;
  // On the host, while an asynchronous save is under way: what the rank writes of values and states, if it is the first
  // of those that have them too. Not in total().
  std::int64_t saved_copy = 0;
  std::int64_t total() const { return parameters + gradients + optimizer + std::max({activations, update, migration}); }
};
// `deck` with its grid and batch settled (read with a rank count). The bytes of bf16 include the fp32 masters, under
// `optimizer`. `here`: its coordinates in both grids. `activations`: at their peak, by the schedule.
MemoryPerRank memory_of_rank(const Deck& deck, const Coordinates& here, const StagePart& part,
                             std::int64_t activations);
// What a unit holds of one micro-batch.
std::int64_t activation_bytes(const Deck& deck, const Coordinates& here, std::int64_t unit, KeptFor what);
// With one stage, micro-batches one after the other: what waits for the backward.
MemoryPerRank memory_of_rank(const Deck& deck, const Coordinates& here);
MemoryPerRank memory_per_rank(const Deck& deck);  // of the rank that has most
// The places in a stage's grid among which the one is that has most.
std::vector<Coordinates> fullest_places(const Deck& deck);

// Weights, moments and masters as whole logical tensors; without HDF5's own few kilobytes.
std::int64_t checkpoint_bytes(const Deck& deck, const Graph& graph);

}  // namespace fourfold
