// A batch of the loader as tensors, and what its losses add up to over all coordinates.
#pragma once

#include "comm/collectives.hpp"
#include "comm/grid_comms.hpp"
#include "data/batch.hpp"
#include "deck/deck.hpp"
#include "grid/process_grid.hpp"
#include "layers/rows.hpp"

namespace fourfold {

// This rank's place among the coordinates that cut the batch: (data, depth), depth fastest; data alone where depth
// splits sequences.
struct BatchCoordinate {
  std::int64_t count = 1, index = 0;
};
BatchCoordinate batch_coordinate(const ParallelDeck& parallel, const GridComms& comms);

// Every coordinate's sums, each once (its row and col ranks hold the same ones): the same on all ranks. Collective. A
// loss is the quotient of such a sum, never a mean of means.
LossSum sum_over_coordinates(const LossSum& mine, const GridComms& comms, Phase phase);

// Which ends of the model a stage has: the first reads inputs, the last targets.
struct ModelEnds {
  bool first = true, last = true;
  bool any() const { return first || last; }
};

// Whether a stage with these ends needs the samples; their number is known without.
bool needs_samples(const Deck& deck, const ModelEnds& ends);

// Copies what these ends need to the device (MemoryTag::buffers). Zero sequences are ordinary.
template <class T>
MicroBatch<T> make_micro_batch(const Deck& deck, const GridComms& comms, const Batch& batch, Pool& pool,
                               const ModelEnds& ends = {});

}  // namespace fourfold
