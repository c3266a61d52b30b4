// What the machine could do: the rate of a step's own matrix products, on all ranks at once, or what is said of it.
#pragma once

#include <string>

#include "comm/communicator.hpp"
#include "deck/deck.hpp"

namespace fourfold {

// Sum over the world of each rank's best rate, FLOP/s, while all of them compute: the fastest of the products (forward,
// input gradient, weight gradient) of the layers of one micro-batch, cut as the grid cuts them; long ones shortened.
// Collective; takes under half a second.
template <class T>
double measure_ceiling(const Deck& deck, const Communicator& world);

// What speeds are compared with.
struct Ceiling {
  double flops_per_second = 0;  // of all ranks; 0: unknown
  std::string source;           // where it comes from, for people
};

// Measured (collective), or what run.machine says of the deck's precision, or unknown.
template <class T>
Ceiling find_ceiling(const Deck& deck, const Communicator& world, bool measure);

}  // namespace fourfold
