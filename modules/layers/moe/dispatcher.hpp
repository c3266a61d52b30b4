// Moves rows to the experts and back. A pair is a token and one of its chosen experts.
//
//   in    tokens x D -> the pairs of this rank's experts x D/moe_col, by (expert, token number):
//         pairs over `expert`; over moe_col all columns of own pairs against some columns of the group's (all-to-all);
//         all-gather over moe_row
//   out   the way back, with a sum over moe_row: reduce-scatter over it, all-to-all over moe_col, back over `expert`
//
// out is the adjoint of in. How pairs move over `expert`:
//   alltoall      each pair's row to its expert's rank
//   allgather     all tokens to all ranks, and all rows of the experts back to all
//   hierarchical  as alltoall in two steps: to the rank of this node that has the place of the receiver in its node,
//                 then between nodes among ranks of one place: N (N - 1) g messages between N nodes of g ranks
// They give the same rows in the same order, bit for bit. Counts and numbers of pairs go over all ranks of a replica of
// the experts.
#pragma once

#include <optional>
#include <vector>

#include "layers/context.hpp"
#include "layers/moe/options.hpp"
#include "layers/moe/places.hpp"

namespace fourfold {

template <class T>
class Dispatcher {
 public:
  using A = kernels::Acc<T>;

  // Where the pairs of one pass go.
  struct Plan {
    Index top_k = 0;
    Tensor<Index> position, order;     // of the pairs of this rank's tokens (kernels::sort_pairs)
    std::vector<Index> sent, arrived;  // pairs to and from each rank of `expert`
    std::vector<Index> block_rows;     // pairs of each (moe_row, moe_col) rank, moe_col fastest
    std::vector<Index> expert_begin;   // first of the pairs of each of this rank's experts, and the end
    Tensor<Index> row_of;              // by place in (expert, token) order: row among those that arrived; empty: itself
    // allgather: tokens of each rank of `expert`; the pairs that arrive, in terms of all their tokens.
    std::vector<Index> tokens;
    Tensor<Index> pair_of;
    // allgather: rows at each rank of `expert`, and how many of them are of lower ranks' tokens.
    std::vector<Index> rows_at, rows_before;
    std::vector<Index> all_sent;  // hierarchical: pairs from rank s to rank r of `expert`, at s x ranks + r

    void hold(HeldBlocks& blocks) {
      position.hold(blocks);
      order.hold(blocks);
      row_of.hold(blocks);
      pair_of.hold(blocks);
    }
    Index pairs() const { return sum(sent); }
    Index arrivals() const { return sum(arrived); }
    Index rows() const { return expert_begin.back(); }
    static Index sum(const std::vector<Index>& sizes);
  };

  Dispatcher(const LayerContext<T>& context, DispatcherType type, Index width, const ExpertPlaces& places)
      : context_(context), type_(type), width_(width), places_(places) {}

  // choice: tokens x k; ids: the tokens' numbers, ascending.
  Plan plan(const Tensor<std::int32_t>& choice, const Tensor<std::int64_t>& ids, Phase phase) const;
  // x: tokens x D. weights (tokens x k): each pair's row is x times its weight; empty: x. Result: rows x D/moe_col.
  Tensor<T> in(const Plan& plan, const Tensor<T>& x, const Tensor<A>& weights, Phase phase) const;
  // y: rows x D/moe_col, partial over moe_row; snap_bits: what complete sums are rounded to. Result: pairs x D, in the
  // order of Plan::order.
  Tensor<T> out(const Plan& plan, const Tensor<A>& y, std::optional<int> snap_bits, Phase phase) const;
  // One number a pair: weights (tokens x k) to every rank that has the pair's row, rows x 1; and back, where it is
  // partial over moe_row and equal over moe_col, tokens x k (0 for a dropped pair).
  Tensor<A> weights_in(const Plan& plan, const Tensor<A>& weights, Phase phase) const;
  Tensor<A> weights_out(const Plan& plan, const Tensor<A>& rows, Phase phase) const;

 private:
  const Communicator& expert() const { return context_.comms.group({Axis::expert}); }
  const Communicator& row() const { return context_.comms.group({Axis::moe_row}); }
  const Communicator& col() const { return context_.comms.group({Axis::moe_col}); }
  void plan_order(Plan& plan, const std::vector<std::int64_t>& counts, const Tensor<std::int64_t>& ids,
                  Phase phase) const;
  void plan_tokens(Plan& plan, const Tensor<std::int64_t>& ids, const Tensor<std::int64_t>& arrived,
                   const std::vector<std::int64_t>& sizes, Phase phase) const;
  Tensor<T> to_experts(const Plan& plan, const Tensor<T>& x, const Tensor<A>& weights, Phase phase) const;
  Tensor<T> from_experts(const Plan& plan, const Tensor<T>& y, Phase phase) const;
  Tensor<T> columns_in(const Plan& plan, const Tensor<T>& x, Phase phase) const;
  Tensor<T> columns_out(const Plan& plan, const Tensor<T>& y, Phase phase) const;
  std::vector<std::int64_t> rows_over_moe_row(const Plan& plan) const;

  LayerContext<T> context_;
  DispatcherType type_;
  Index width_;
  const ExpertPlaces& places_;
};

}  // namespace fourfold
