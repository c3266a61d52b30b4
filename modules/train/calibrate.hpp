// What the machine could do: the rate of a matrix product of the model's own shape, on all ranks at once.
#pragma once

#include "comm/communicator.hpp"
#include "deck/deck.hpp"
#include "tensor/tensor.hpp"

namespace fourfold {

// Sum over the world of each rank's best rate, FLOP/s, while all of them compute. Collective; takes under 0.2 s. The
// shape is the feed-forward product of one micro-batch (an MLP's largest matrix), with fewer rows where that is long.
template <class T>
double measure_ceiling(const Deck& deck, const Communicator& world, Pool& pool);

}  // namespace fourfold
