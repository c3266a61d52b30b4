// The rows of a pass on this rank: those of its batch coordinate, and those of its part of the residual stream, which
// is cut over row under sequence sharding. Movements between the two.
#pragma once

#include <memory>
#include <vector>

#include "grid/cuts.hpp"
#include "layers/context.hpp"
#include "layers/pass.hpp"
#include "tensor/layout.hpp"

namespace fourfold {

// Rows of equal sequences and several ranges of tokens, stacked range by range.
struct Rows {
  Index sequences = 0;
  std::vector<Range> ranges;
  bool separate = false;  // generation: each range is of one sequence of its own (`sequences` is 1)

  Index count() const;
  TokenLayout layout(Range cols) const;  // all rows, these columns
};

// Each range of tokens cut over row by quotient and remainder (sequence sharding).
Rows cut_over_row(const Rows& rows, int parts, int index);

template <class T>
struct RowPlan {
  Rows coordinate;                                               // this rank's batch coordinate
  Rows stream;                                                   // this rank's part of the residual stream
  Index sequence_tokens = 0;                                     // of a whole sequence, over all depth coordinates
  Tensor<std::int32_t> first_keys, positions, stream_positions;  // MicroBatch's
  // coordinate's rows from stream's parts over row, for tensors of `width` columns; null without sequence sharding.
  std::unique_ptr<LayoutGather<T>> over_row(const LayerContext<T>& context, Index width) const;
  bool sharded = false;      // the stream is cut over row
  bool depth_parts = false;  // depth coordinates hold parts of the sequences
  bool cached = false;       // rows follow those of caches
};

template <class T>
RowPlan<T> plan_rows(const LayerContext<T>& context, const Pass<T>& pass);

// f(first_row, rows, range) for each range of tokens.
template <class F>
void for_each_range(const Rows& rows, const F& f) {
  Index first = 0;
  for (const Range& range : rows.ranges) {
    const Index count = rows.sequences * range.size();
    f(first, count, range);
    first += count;
  }
}

// Rows [first, first + count) of a tensor as a matrix.
template <class T>
kernels::Matrix<T> row_block(const Tensor<T>& x, Index first, Index count) {
  return kernels::Matrix<T>(x.data() + first * x.cols(), count, x.cols());
}

}  // namespace fourfold
