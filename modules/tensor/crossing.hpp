// From the ranks of one grid to those of another: which elements of a tensor each of the senders gives to whom. Both
// sides cut the tensor their own way, and what one of them holds several times (replicas) is the same there. Arithmetic
// only, but for packing: who sends and waits is the caller's business.
//
// The way back is the adjoint: an element that a side holds several times counts once, so that a gradient goes to all
// replicas as the activation came from one of them.
#pragma once

#include <array>
#include <vector>

#include "grid/partition.hpp"
#include "kernels/permute.hpp"
#include "tensor/layout.hpp"
#include "tensor/tensor.hpp"

namespace fourfold {

// A box of a tensor of three dims as it lies in a rank's memory: element (i, j, k) at
// first + (i - box[0].begin) strides[0] + (j - box[1].begin) strides[1] + k - box[2].begin.
struct HeldBox {
  std::array<Range, 3> box;
  Index first = 0;
  std::array<Index, 2> strides{};
  bool operator==(const HeldBox&) const = default;
};

// All that a rank holds: disjoint boxes, side by side in memory in their order. Empty where it holds nothing.
using Holding = std::vector<HeldBox>;
Holding holding_of(const TokenLayout& layout);  // sequences, tokens, columns
Holding holding_of(const Shard& shard);         // of two dims, which become the last two
Index size_of(const Holding& holding);

// What goes to, or comes from, one rank of the other side: boxes one after another in a packed buffer.
struct CrossingPiece {
  int peer = 0;  // its place on the other side
  Index elements = 0;
  std::vector<kernels::BoxCopy> boxes;  // memory to buffer for senders, buffer to memory for receivers
  bool whole = false;                   // the buffer is the rank's memory as it lies: nothing needs to be packed
};

// Of senders[me], by ascending peer. `senders` and `receivers`: the holdings of each side's ranks; those of one side
// are equal or disjoint. The t-th of the ranks that hold the same is served by the t-th (modulo their number) of those
// that hold the same on the other side.
std::vector<CrossingPiece> pieces_to_send(const std::vector<Holding>& senders, const std::vector<Holding>& receivers,
                                          int me);
// Of receivers[me], by ascending peer. Errors: assertion where the senders do not hold all of it.
std::vector<CrossingPiece> pieces_to_receive(const std::vector<Holding>& senders, const std::vector<Holding>& receivers,
                                             int me);

// memory -> buffer (of the piece's elements).
template <class T>
void pack(const CrossingPiece& piece, kernels::Vector<const T> memory, kernels::Vector<T> buffer);
// buffer -> memory, overwriting; or adding.
template <class T>
void unpack(const CrossingPiece& piece, kernels::Vector<const T> buffer, kernels::Vector<T> memory);
template <class T>
void unpack_add(const CrossingPiece& piece, kernels::Vector<const T> buffer, kernels::Vector<T> memory);

}  // namespace fourfold
