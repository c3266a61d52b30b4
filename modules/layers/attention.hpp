// Causal self-attention with grouped KV heads. Heads are cut over row: row divides the heads, and the KV heads divide
// row or row divides them (then row / K neighbours hold the same KV head).
//   q = Wq x, k = Wk x, v = Wv x (k and v in one product); rotary positions on q and k; o = attention(q, k, v); y = Wo
//   o
#pragma once

#include <string>

#include "kernels/attention.hpp"
#include "layers/linear.hpp"
#include "layers/pass.hpp"

namespace fourfold {

struct AttentionOptions {
  Index width = 0, heads = 0, kv_heads = 0, head_dim = 0;
  bool qkv_bias = false, output_bias = false;
  bool rotary = true;
  double rope_theta = 10000.0;
};

// Initial values by parameter name; `residual` marks the projections into the residual stream.
using InitializerFor = std::function<Initializer(const std::string& name, Index columns, bool residual)>;

template <class T>
class Attention {
 public:
  struct Kept {
    typename Linear<T>::Kept q_linear, kv_linear, output_linear;
    Tensor<T> q, kv, out;
    Tensor<kernels::Acc<T>> lse;
  };

  Attention(const LayerContext<T>& context, const std::string& name, const AttentionOptions& options,
            const InitializerFor& init);

  // x: R x D/col, rows of whole sequences. With a cache: one sequence whose rows follow what the cache holds.
  Tensor<T> forward(const Pass<T>& pass, const Tensor<T>& x, AttentionCache<T>* cache, Kept* kept) const;
  Tensor<T> backward_input(const Pass<T>& pass, const Tensor<T>& dy, Kept& kept) const;
  void backward_weight(Kept& kept) const;

  AttentionCache<T> make_cache(Index capacity) const;

 private:
  kernels::AttentionShape shape(Index sequences, Index query_tokens, Index key_tokens) const;
  kernels::Heads<T> heads(const Tensor<T>& tensor, Index first_col, Index count) const;
  Index kv_cols() const { return kv_held_.size() * options_.head_dim; }

  LayerContext<T> context_;
  AttentionOptions options_;
  Range heads_held_, kv_held_;
  Linear<T> q_, kv_, output_;
};

}  // namespace fourfold
