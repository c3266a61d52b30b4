// The door between the dense grid and the experts: every token of the stage's micro-batch on exactly one rank, with all
// its columns, in the order of the tokens' numbers.
//
// The residual stream has a coordinate's rows (its part of them under sequence sharding) x D/col, replicated over row
// where it is not sharded. In token order they are cut over row x col (sharded: over col) by quotient and remainder;
// the cut over row moves nothing, columns are exchanged over col (all-to-all). The way back is the adjoint: the
// exchange over col, then, where row holds replicas, an all-gather over it.
#pragma once

#include <vector>

#include "layers/rows.hpp"
#include "layers/unit.hpp"

namespace fourfold {

template <class T>
class Door {
 public:
  // The rows of one pass. A token's number is (its sequence's among the samples of the step) x (tokens of a whole
  // sequence) + (its position).
  struct Plan {
    std::vector<Index> runs;         // first row of each run in token order, and their end
    int run = 0;                     // this rank's
    Tensor<Index> row_at;            // of the stream, by place in token order; empty: rows are in that order
    Tensor<std::int64_t> ids;        // numbers of this rank's tokens, ascending
    std::vector<Index> sequence_at;  // first of this rank's tokens in each of the coordinate's sequences, and the end
    bool gathered = true;            // the way back ends on every row rank
    Index tokens() const { return ids.size(); }
    bool in_order() const { return row_at.cols() == 0; }
    void hold(HeldBlocks& blocks) {
      row_at.hold(blocks);
      ids.hold(blocks);
    }
  };

  Door(const LayerContext<T>& context, Index width) : context_(context), width_(width) {}

  Plan plan(const PlannedPass<T>& pass) const;
  // x: rows of the stream x D/col -> this rank's tokens x D.
  Tensor<T> in(const Plan& plan, const Tensor<T>& x, Phase phase) const;
  // y: this rank's tokens x D -> rows of the stream x D/col.
  Tensor<T> out(const Plan& plan, const Tensor<T>& y, Phase phase) const;

 private:
  Range section(const Plan& plan) const;
  Index run_size(const Plan& plan, int c) const;

  LayerContext<T> context_;
  Index width_;
};

}  // namespace fourfold
