// What layers are made with: the groups of the grid, where memory and parameters come from, and how numbers are
// treated.
#pragma once

#include <optional>

#include "comm/grid_comms.hpp"
#include "layers/deferred.hpp"
#include "tensor/movement.hpp"
#include "tensor/param.hpp"

namespace fourfold {

// Bits after the point on the dyadic deck (numerics.snap), so that every sum is exact in any order.
struct Snap {
  int values = 8;      // outputs of linear layers, weights after an update
  int gradients = 12;  // the loss's gradient, input gradients, parameter gradients
};

struct LayerOptions {
  Summation summation = Summation::fast;
  std::optional<Snap> snap;
  std::uint64_t seed = 0;
  bool sequence_shard = false;      // the residual stream is cut over row (parallel.sequence_shard)
  bool attention_over_col = false;  // attention's heads, then sequences, are cut over col (attention.split: col)
  bool depth_sequence = false;      // depth coordinates hold parts of sequences (parallel.depth_splits: sequence)
  bool overlap = true;              // hide movements behind products where there is something to hide them behind
};

template <class T>
struct LayerContext {
  const GridComms& comms;
  Pool& pool;
  ParamStore<T>& store;
  LayerOptions options;
  Deferred& deferred;
  GatherQueue<T>& gathers;

  int extent(Axis axis) const { return comms.grid().extent(comms.here().stage, axis); }
  int place(Axis axis) const { return comms.here()[axis]; }
  // This rank's part of a length cut over an axis by quotient and remainder.
  Range part_of(std::int64_t length, Axis axis) const { return part(length, extent(axis), place(axis)); }
  // A kernel's work on the virtual clock: FLOPs, and elements of T read or written.
  void work(std::int64_t flops, std::int64_t elements) const {
    comms.clock().compute(kNumberType<T>, flops, elements * static_cast<std::int64_t>(sizeof(T)));
  }
  // The axes over which the gradient of a vector on the residual stream (norms, positions) is partial.
  AxisSet stream_sums() const {
    return options.sequence_shard ? AxisSet{Axis::data, Axis::depth, Axis::row} : AxisSet{Axis::data, Axis::depth};
  }
};

// The pair of axes of a linear layer: which splits its inputs, which its outputs. The next layer swaps them.
struct Orientation {
  Axis in = Axis::col;
  Axis out = Axis::row;
  Orientation swapped() const { return {out, in}; }
};

}  // namespace fourfold
