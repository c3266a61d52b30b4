// What layers are made with: the groups of the grid, where memory and parameters come from, and how numbers are
// treated.
#pragma once

#include <optional>

#include "comm/grid_comms.hpp"
#include "tensor/movement.hpp"
#include "tensor/param.hpp"

namespace fourfold {

// Bits after the point on the dyadic deck (architecture: "Instruments", item 5).
struct Snap {
  int values = 8;      // outputs of linear layers, weights after an update
  int gradients = 12;  // the loss's gradient, input gradients, parameter gradients
};

template <class T>
struct LayerContext {
  const GridComms& comms;
  Pool& pool;
  ParamStore<T>& store;
  Summation summation = Summation::fast;
  std::optional<Snap> snap;
  std::uint64_t seed = 0;

  int extent(Axis axis) const { return comms.grid().extent(comms.here().stage, axis); }
  int place(Axis axis) const { return comms.here()[axis]; }
  // This rank's part of a length cut over an axis by quotient and remainder.
  Range part_of(std::int64_t length, Axis axis) const { return part(length, extent(axis), place(axis)); }
};

// The pair of axes of a linear layer: which splits its inputs, which its outputs. The next layer swaps them.
struct Orientation {
  Axis in = Axis::col;
  Axis out = Axis::row;
  Orientation swapped() const { return {out, in}; }
};

}  // namespace fourfold
