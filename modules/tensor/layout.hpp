// Which rows and columns of a micro-batch's activation a rank holds, and the movements between such layouts.
//
// The whole activation has sequences x tokens rows and some columns. A rank holds blocks (a range of sequences, of
// tokens and of columns each; all of one width), stacked in their order, rows in (sequence, token) order. Sequence
// sharding cuts the tokens over row, attention.split: col cuts heads and sequences over col, depth_splits: sequence
// gives a rank two ranges of tokens.
#pragma once

#include <utility>
#include <vector>

#include "comm/collectives.hpp"
#include "grid/partition.hpp"
#include "tensor/tensor.hpp"

namespace fourfold {

struct TokenBlock {
  Range sequences, tokens, cols;
  Index rows() const { return sequences.size() * tokens.size(); }
};

struct TokenLayout {
  std::vector<TokenBlock> blocks;
  Index width = 0;  // of every block
  Index rows() const;
  Index size() const { return rows() * width; }
};

// Copies what `from` and `to` have in common; the rest of the target stays. Shapes: rows x cols of the layouts.
template <class T>
void copy_layout(const TokenLayout& from, kernels::Vector<const T> source, const TokenLayout& to,
                 kernels::Vector<T> target);

// One layout a rank of `group`, disjoint, whose union is `whole`.
//   gather        a part on each rank -> the whole on every rank            (adjoint: scatter_sum)
//   scatter_sum   partial wholes -> each rank's part of their sum           (adjoint: gather); in Acc<T>
template <class T>
class LayoutGather {
 public:
  LayoutGather(const Communicator& group, Pool& pool, std::vector<TokenLayout> parts, TokenLayout whole,
               Summation summation);

  Tensor<T> gather(const Tensor<T>& part, CallSite site) const;
  Tensor<kernels::Acc<T>> scatter_sum(const Tensor<kernels::Acc<T>>& whole, CallSite site) const;
  // The same under way: the part is complete when the Pending is.
  std::pair<Tensor<kernels::Acc<T>>, Pending> start_scatter_sum(const Tensor<kernels::Acc<T>>& whole,
                                                                CallSite site) const;

 private:
  template <class E>
  Tensor<E> reordered(const TokenLayout& from, const Tensor<E>& x, const TokenLayout& to) const;
  const TokenLayout& mine() const { return parts_[static_cast<std::size_t>(group_->rank())]; }

  const Communicator* group_;
  Pool* pool_;
  std::vector<TokenLayout> parts_;
  TokenLayout whole_;
  std::vector<std::int64_t> sizes_;
  Summation summation_;
};

}  // namespace fourfold
