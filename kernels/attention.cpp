#include "kernels/attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/gemm.hpp"
#include "kernels/lanes.hpp"
#include "kernels/math.hpp"

namespace fourfold::kernels {

namespace {

// A tile of scores stays in the second-level cache (64 KiB of floats; backward has two), and a short query block keeps
// down what the diagonal tiles compute above the diagonal.
constexpr Index kQueryBlock = 64;
constexpr Index kKeyBlock = 256;

Index query_block(const AttentionShape& shape) {
  return std::min(kQueryBlock, shape.query_tokens);
}
Index key_block(const AttentionShape& shape) {
  return std::min(kKeyBlock, shape.key_tokens);
}

// Keys that the last query of [first, last) sees; earlier queries see fewer.
Index visible_keys(const AttentionShape& shape, Index last) {
  return std::min(shape.key_tokens, shape.first_query + last);
}

template <class T>
T* head_at(const Heads<T>& x, const AttentionShape& shape, Index row, Index head) {
  return x.data + row * x.stride + head * shape.head_dim;
}

// Where a tile stands: rows are queries from `query`, columns are keys from `key`, `width` of them.
struct Tile {
  Index rows = 0, width = 0, stride = 0, query = 0, key = 0;

  // Columns of row r on or below the diagonal.
  KOKKOS_FORCEINLINE_FUNCTION Index seen(Index r) const {
    const Index n = query + r + 1 - key;
    return n < 0 ? 0 : (n < width ? n : width);
  }
};

// Scores become exp(scale S - max) against the running max; out and the running sum are brought to the new max.
template <class T>
void tile_softmax(const Space& space, const Tile& at, T scale, bool first, T* scores, T* max, T* sum, T* out,
                  Index out_stride, Index head_dim) {
  const Tile tile = at;
  Kokkos::parallel_for(
      "attention_forward_softmax", Range1(space, 0, tile.rows), KOKKOS_LAMBDA(Index r) {
        T* row = scores + r * tile.stride;
        const Index n = tile.seen(r);
        const T old_max = first ? -std::numeric_limits<T>::infinity() : max[r];
        const T tile_max = lane_max<T>(n, [=](Index j) { return scale * row[j]; });
        const T new_max = old_max > tile_max ? old_max : tile_max;
        const T tile_sum = lane_sum<T, kFewLanes>(n, [=](Index j) {
          const T p = fast_exp_below(scale * row[j] - new_max);
          row[j] = p;
          return p;
        });
        for (Index j = n; j < tile.width; ++j) row[j] = T(0);
        max[r] = new_max;
        if (first) {
          sum[r] = tile_sum;
        } else if (new_max > old_max) {
          const T correction = fast_exp_below(old_max - new_max);
          sum[r] = sum[r] * correction + tile_sum;
          T* out_row = out + r * out_stride;
          for (Index i = 0; i < head_dim; ++i) out_row[i] *= correction;
        } else {
          sum[r] += tile_sum;
        }
      });
}

template <class T>
void finish_rows(const Space& space, Index rows, const T* max, const T* sum, T* out, Index out_stride, Index head_dim,
                 T* lse) {
  Kokkos::parallel_for(
      "attention_forward", Range1(space, 0, rows), KOKKOS_LAMBDA(Index r) {
        // A query without keys has sum 0 and out 0.
        const T inverse = sum[r] > T(0) ? T(1) / sum[r] : T(0);
        T* out_row = out + r * out_stride;
        for (Index i = 0; i < head_dim; ++i) out_row[i] *= inverse;
        lse[r] = max[r] + std::log(sum[r]);
      });
}

// delta = rowsum(dO O)
template <class T>
void row_products(const Space& space, Index rows, const T* a, Index a_stride, const T* b, Index b_stride,
                  Index head_dim, T* product) {
  Kokkos::parallel_for(
      "attention_backward_delta", Range1(space, 0, rows), KOKKOS_LAMBDA(Index r) {
        const T* a_row = a + r * a_stride;
        const T* b_row = b + r * b_stride;
        product[r] = lane_sum<T>(head_dim, [=](Index i) { return a_row[i] * b_row[i]; });
      });
}

// S becomes P, dP becomes dS.
template <class T>
void tile_gradient(const Space& space, const Tile& at, T scale, const T* lse, const T* delta, T* scores, T* gradient) {
  const Tile tile = at;
  Kokkos::parallel_for(
      "attention_backward_softmax", Range1(space, 0, tile.rows), KOKKOS_LAMBDA(Index r) {
        T* p = scores + r * tile.stride;
        T* g = gradient + r * tile.stride;
        const Index n = tile.seen(r);
        const T row_lse = lse[r], row_delta = delta[r];
        for (Index j = 0; j < n; ++j) {
          p[j] = fast_exp_below(scale * p[j] - row_lse);
          g[j] = p[j] * (g[j] - row_delta) * scale;
        }
        for (Index j = n; j < tile.width; ++j) p[j] = T(0);
        for (Index j = n; j < tile.width; ++j) g[j] = T(0);
      });
}

Index key_rows(const AttentionShape& shape) {
  return shape.key_rows > 0 ? shape.key_rows : shape.key_tokens;
}

template <class T>
void clear(const Space& space, const AttentionShape& shape, const Heads<T>& x) {
  const Index width = x.heads * shape.head_dim;
  T* data = x.data;
  const Index stride = x.stride;
  const Index tokens = shape.key_tokens;
  const Index rows = key_rows(shape);
  Kokkos::parallel_for(
      "attention_backward_clear", Range1(space, 0, shape.batch * tokens), KOKKOS_LAMBDA(Index r) {
        T* row = data + (r / tokens * rows + r % tokens) * stride;
        for (Index i = 0; i < width; ++i) row[i] = T(0);
      });
}

Index kv_head(const AttentionShape& shape, Index head) {
  return (shape.first_head + head) / shape.heads_per_kv - shape.first_kv;
}

}  // namespace

template <class T>
Index attention_scratch(const AttentionShape& shape) {
  return query_block(shape) * (2 * key_block(shape) + 2);
}

template <class T>
void attention_forward(const Space& space, const AttentionShape& shape, Heads<const T> q, Heads<const T> k,
                       Heads<const T> v, Heads<T> out, Vector<Acc<T>> lse, Vector<T> scratch) {
  static_assert(std::is_same_v<T, Acc<T>>, "scores and row statistics share the scratch");
  const T scale = static_cast<T>(shape.scale);
  const Index d = shape.head_dim;
  T* scores = scratch.data();
  T* max = scores + query_block(shape) * key_block(shape);
  T* sum = max + query_block(shape);
  for (Index b = 0; b < shape.batch; ++b) {
    for (Index h = 0; h < q.heads; ++h) {
      const Index g = kv_head(shape, h);
      for (Index i0 = 0; i0 < shape.query_tokens; i0 += kQueryBlock) {
        const Index rows = std::min(kQueryBlock, shape.query_tokens - i0);
        const Index keys = visible_keys(shape, i0 + rows);
        const Index row = b * shape.query_tokens + i0;
        T* out_block = head_at(out, shape, row, h);
        Index j0 = 0;
        do {  // once even where no key is seen, to clear the output
          const Index width = std::min(kKeyBlock, keys - j0);
          const Tile tile{rows, width, key_block(shape), shape.first_query + i0, j0};
          const Index key_row = b * key_rows(shape) + j0;
          gemm<T>(space, false, true, rows, width, d, head_at(q, shape, row, h), q.stride,
                  head_at(k, shape, key_row, g), k.stride, scores, tile.stride);
          tile_softmax<T>(space, tile, scale, j0 == 0, scores, max, sum, out_block, out.stride, d);
          gemm<T>(space, false, false, rows, d, width, scores, tile.stride, head_at(v, shape, key_row, g), v.stride,
                  out_block, out.stride, j0 == 0 ? Write::overwrite : Write::add);
          j0 += kKeyBlock;
        } while (j0 < keys);
        T* row_lse = lse.data() + (b * q.heads + h) * shape.query_tokens + i0;
        finish_rows<T>(space, rows, max, sum, out_block, out.stride, d, row_lse);
      }
    }
  }
}

template <class T>
void attention_backward(const Space& space, const AttentionShape& shape, Heads<const T> q, Heads<const T> k,
                        Heads<const T> v, Heads<const T> out, Vector<const Acc<T>> lse, Heads<const T> dout,
                        Heads<T> dq, Heads<T> dk, Heads<T> dv, Vector<T> scratch) {
  const T scale = static_cast<T>(shape.scale);
  const Index d = shape.head_dim;
  T* scores = scratch.data();
  T* gradient = scores + query_block(shape) * key_block(shape);
  T* delta = gradient + query_block(shape) * key_block(shape);
  // Every key takes a sum over heads and queries, some keys over none.
  clear<T>(space, shape, dk);
  clear<T>(space, shape, dv);
  for (Index b = 0; b < shape.batch; ++b) {
    for (Index h = 0; h < q.heads; ++h) {
      const Index g = kv_head(shape, h);
      for (Index i0 = 0; i0 < shape.query_tokens; i0 += kQueryBlock) {
        const Index rows = std::min(kQueryBlock, shape.query_tokens - i0);
        const Index keys = visible_keys(shape, i0 + rows);
        const Index row = b * shape.query_tokens + i0;
        const T* q_block = head_at(q, shape, row, h);
        const T* dout_block = head_at(dout, shape, row, h);
        T* dq_block = head_at(dq, shape, row, h);
        row_products<T>(space, rows, dout_block, dout.stride, head_at(out, shape, row, h), out.stride, d, delta);
        const T* row_lse = lse.data() + (b * q.heads + h) * shape.query_tokens + i0;
        Index j0 = 0;
        do {  // once even where no key is seen, to clear dq
          const Index width = std::min(kKeyBlock, keys - j0);
          const Tile tile{rows, width, key_block(shape), shape.first_query + i0, j0};
          const Index key_row = b * key_rows(shape) + j0;
          const T* k_block = head_at(k, shape, key_row, g);
          gemm<T>(space, false, true, rows, width, d, q_block, q.stride, k_block, k.stride, scores, tile.stride);
          gemm<T>(space, false, true, rows, width, d, dout_block, dout.stride, head_at(v, shape, key_row, g), v.stride,
                  gradient, tile.stride);
          tile_gradient<T>(space, tile, scale, row_lse, delta, scores, gradient);
          gemm<T>(space, true, false, width, d, rows, scores, tile.stride, dout_block, dout.stride,
                  head_at(dv, shape, key_row, g), dv.stride, Write::add);
          gemm<T>(space, false, false, rows, d, width, gradient, tile.stride, k_block, k.stride, dq_block, dq.stride,
                  j0 == 0 ? Write::overwrite : Write::add);
          gemm<T>(space, true, false, width, d, rows, gradient, tile.stride, q_block, q.stride,
                  head_at(dk, shape, key_row, g), dk.stride, Write::add);
          j0 += kKeyBlock;
        } while (j0 < keys);
      }
    }
  }
}

#define FOURFOLD_INSTANTIATE(T)                                                                                       \
  template Index attention_scratch<T>(const AttentionShape&);                                                         \
  template void attention_forward<T>(const Space&, const AttentionShape&, Heads<const T>, Heads<const T>,             \
                                     Heads<const T>, Heads<T>, Vector<Acc<T>>, Vector<T>);                            \
  template void attention_backward<T>(const Space&, const AttentionShape&, Heads<const T>, Heads<const T>,            \
                                      Heads<const T>, Heads<const T>, Vector<const Acc<T>>, Heads<const T>, Heads<T>, \
                                      Heads<T>, Heads<T>, Vector<T>);
FOURFOLD_INSTANTIATE(float)
FOURFOLD_INSTANTIATE(double)
#undef FOURFOLD_INSTANTIATE

}  // namespace fourfold::kernels
