// Causal self-attention with grouped KV heads. Heads are cut over row: row divides the heads, and the KV heads divide
// row or row divides them (then row / K neighbours hold the same KV head).
//   q = Wq x, k = Wk x, v = Wv x (k and v in one product); rotary positions on q and k
//   o = attention(q, k, v); y = Wo o
//
// options.attention_over_col: the work between the products is cut over col too, by KV heads as far as they go, then by
// sequences: the sum over col after the first products becomes a reduce-scatter, and o is gathered over col.
// options.depth_sequence: k and v are gathered over depth, whose ranks hold parts of the sequences.
#pragma once

#include <string>

#include "kernels/attention.hpp"
#include "kernels/rotary.hpp"
#include "layers/linear.hpp"
#include "layers/rows.hpp"

namespace fourfold {

struct AttentionOptions {
  Index width = 0, heads = 0, kv_heads = 0, head_dim = 0;
  bool qkv_bias = false, output_bias = false;
  bool rotary = true;
  kernels::RotaryAngles angles;
};

// Initial values by parameter name; `residual` marks the projections into the residual stream.
using InitializerFor = std::function<Initializer(const std::string& name, Index columns, bool residual)>;

template <class T>
class Attention {
 public:
  struct Kept {
    typename Linear<T>::Kept q_linear, kv_linear, output_linear;
    Tensor<T> q, kv, out;  // kv: as attention reads it, gathered over depth
    Tensor<kernels::Acc<T>> lse;
    void hold(HeldBlocks& blocks) {
      q_linear.hold(blocks);
      kv_linear.hold(blocks);
      output_linear.hold(blocks);
      q.hold(blocks);
      kv.hold(blocks);
      out.hold(blocks);
      lse.hold(blocks);
    }
  };

  Attention(const LayerContext<T>& context, const std::string& name, const AttentionOptions& options,
            const InitializerFor& init);

  // One a range of the rows: its past, which the range's keys and values join.
  using Pasts = std::vector<const AttentionCache<T>*>;

  // x: rows of the stream x D/col. `pasts`: where rows.cached.
  Tensor<T> forward(const RowPlan<T>& rows, const Tensor<T>& x, const Pasts& pasts, Kept* kept) const;
  Tensor<T> backward_input(const RowPlan<T>& rows, const Tensor<T>& dy, Kept& kept) const;
  void backward_weight(Kept& kept) const;

  AttentionCache<T> make_cache(Index capacity) const;

 private:
  // This rank's part of the work between the products, and the movements into and out of it.
  struct Work {
    Rows rows;           // the queries' sequences and tokens
    Range sequences;     // of the coordinate's
    Range q_heads;       // among the heads held
    Range kv_heads;      // among the KV heads held
    Index key_rows = 0;  // rows a sequence in k and v
    bool heads_over_col = false;
    std::unique_ptr<LayoutGather<T>> q_over_col, kv_over_col, kv_over_depth;
  };
  Work plan_work(const RowPlan<T>& rows) const;
  TokenLayout q_layout(const Rows& rows, int col) const;
  TokenLayout kv_layout(const Rows& rows, bool over_col, int col) const;

  struct KeysValues {
    kernels::Heads<T> keys, values;
  };
  // k and v side by side in columns, or stacked in rows where col cuts heads.
  KeysValues split_keys_values(const Work& work, const Tensor<T>& kv) const;
  // What a sequence has once kv's rows from `first` on, its tokens `range`, are in its cache.
  KeysValues extended(const AttentionCache<T>& cache, const Tensor<T>& kv, Index first, Range range) const;
  void rotate(const RowPlan<T>& rows, const Work& work, const Tensor<T>& q, const Tensor<T>& kv, bool backward) const;
  kernels::AttentionShape shape(const RowPlan<T>& rows, const Work& work, Index first, Range queries) const;
  // On the virtual clock: each query with the keys it sees, `products` times 2 head_dim FLOPs; `passes` times q, k and
  // v through memory.
  void count_products(const Work& work, std::int64_t products, std::int64_t passes) const;

  LayerContext<T> context_;
  AttentionOptions options_;
  Range heads_held_, kv_held_;
  Linear<T> q_, kv_, output_;
};

}  // namespace fourfold
