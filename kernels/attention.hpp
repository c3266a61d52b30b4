// Causal attention with grouped KV heads, blocked over queries and keys: the upper half is skipped, as are (on hosts)
// the blocks before a document begins, and only the logsumexp of each row is kept, so memory is linear in the tokens
// (Dao et al. 2022, FlashAttention).
//   S = scale Q K^T (causal), P = softmax(S), O = P V;  lse = log sum exp S
//   delta = rowsum(dO O); dP = dO V^T; dS = P (dP - delta) scale; dQ = dS K; dK = dS^T Q; dV = P^T dO
#pragma once

#include "kernels/types.hpp"

namespace fourfold::kernels {

// Heads of size head_dim side by side in rows of `stride` elements; row (b, t) is row b * tokens + t.
template <class T>
struct Heads {
  T* data = nullptr;
  Index stride = 0;
  Index heads = 0;
};

struct AttentionShape {
  Index batch = 0;
  Index query_tokens = 0;
  Index key_tokens = 0;   // query t sees keys 0 .. first_query + t
  Index first_query = 0;  // position of the first query among the keys (generation, parts of sequences)
  Index head_dim = 0;
  double scale = 1.0;
  // Query head h reads KV head (first_head + h) / heads_per_kv - first_kv (a rank may hold a part of the heads).
  Index heads_per_kv = 1;
  Index first_head = 0;
  Index first_kv = 0;
  Index key_rows = 0;  // rows a sequence has in k and v, at least key_tokens (0: key_tokens)
  // Where documents begin: query t of sequence b sees no key before first_key[b query_tokens + t], which does not
  // fall with t. Null: sequences are one document.
  const std::int32_t* first_key = nullptr;
};

// Elements of Acc<T> that the two calls need as scratch.
template <class T>
Index attention_scratch(const AttentionShape& shape);

// out: as q. lse: batch x heads x query_tokens.
template <class T>
void attention_forward(const Space& space, const AttentionShape& shape, Heads<const T> q, Heads<const T> k,
                       Heads<const T> v, Heads<T> out, Vector<Acc<T>> lse, Vector<Acc<T>> scratch);
// dq, dk, dv are overwritten. Sums over query heads that share a KV head are made here, in ascending head order.
template <class T>
void attention_backward(const Space& space, const AttentionShape& shape, Heads<const T> q, Heads<const T> k,
                        Heads<const T> v, Heads<const T> out, Vector<const Acc<T>> lse, Heads<const T> dout,
                        Heads<T> dq, Heads<T> dk, Heads<T> dv, Vector<Acc<T>> scratch);

}  // namespace fourfold::kernels
