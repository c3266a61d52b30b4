#include "kernels/attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/gemm.hpp"
#include "kernels/lanes.hpp"
#include "kernels/math.hpp"
#include "kernels/tile_product.hpp"
#include "kernels/vector.hpp"

namespace fourfold::kernels {

namespace {

constexpr bool kHostSpace = Kokkos::SpaceAccessibility<Kokkos::HostSpace, Space::memory_space>::accessible;

// A tile of scores stays in the second-level cache (96 KiB of floats; backward has two), and a short query block keeps
// down what the diagonal tiles compute above the diagonal.
constexpr Index kQueryBlock = 96;
constexpr Index kKeyBlock = 128;

Index query_block(const AttentionShape& shape) {
  return std::min(kQueryBlock, shape.query_tokens);
}
Index key_block(const AttentionShape& shape) {
  return std::min(kKeyBlock, (shape.key_tokens + 31) / 32 * 32);
}
// Between a tile's rows: whole panels, and no power of two, or a column's elements would meet in a few cache sets.
Index tile_stride(const AttentionShape& shape) {
  return key_block(shape) + 32;
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
  const std::int32_t* first_key = nullptr;  // of its rows, among all keys; null: 0
  bool first = true;                        // of the tiles of these queries

  // Columns of row r on or below the diagonal.
  KOKKOS_FORCEINLINE_FUNCTION Index seen(Index r) const {
    const Index n = query + r + 1 - key;
    return n < 0 ? 0 : (n < width ? n : width);
  }
  // Columns of row r before its document begins.
  KOKKOS_FORCEINLINE_FUNCTION Index hidden(Index r) const {
    const Index n = first_key == nullptr ? 0 : first_key[r] - key;
    return n < 0 ? 0 : (n < width ? n : width);
  }
  // The first row that sees column c, `rows` if none does.
  KOKKOS_FORCEINLINE_FUNCTION Index first_row(Index c) const {
    const Index r = key + c - query;
    return r < 0 ? 0 : (r < rows ? r : rows);
  }
};

// Scores become exp(scale S - max) against the running max; out and the running sum are brought to the new max.
template <class T>
void tile_softmax(const Space& space, const Tile& at, T scale, T* scores, T* max, T* sum, T* out, Index out_stride,
                  Index head_dim) {
  const Tile tile = at;
  const bool first = at.first;
  Kokkos::parallel_for(
      "attention_forward_softmax", Range1(space, 0, tile.rows), KOKKOS_LAMBDA(Index r) {
        T* all = scores + r * tile.stride;
        const Index begin = tile.hidden(r), end = tile.seen(r);
        const Index n = begin < end ? end - begin : 0;
        T* row = all + begin;
        constexpr T kLowest = -std::numeric_limits<T>::infinity();  // no call on a device
        const T old_max = first ? kLowest : max[r];
        const T tile_max = lane_max<T>(n, [=](Index j) { return scale * row[j]; });
        const T new_max = old_max > tile_max ? old_max : tile_max;
        const T tile_sum = lane_sum<T, kFewLanes>(n, [=](Index j) {
          const T p = fast_exp_below(scale * row[j] - new_max);
          row[j] = p;
          return p;
        });
        for (Index j = 0; j < begin; ++j) all[j] = T(0);
        for (Index j = begin + n; j < tile.width; ++j) all[j] = T(0);
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

// `weighted` may be `out`.
template <class A, class T>
void finish_rows(const Space& space, Index rows, const A* max, const A* sum, const A* weighted, Index weighted_stride,
                 T* out, Index out_stride, Index head_dim, A* lse) {
  Kokkos::parallel_for(
      "attention_forward", Range1(space, 0, rows), KOKKOS_LAMBDA(Index r) {
        // A query without keys has sum 0 and out 0.
        const A inverse = sum[r] > A(0) ? A(1) / sum[r] : A(0);
        const A* from = weighted + r * weighted_stride;
        T* out_row = out + r * out_stride;
        for (Index i = 0; i < head_dim; ++i) out_row[i] = from[i] * inverse;
        lse[r] = max[r] + std::log(sum[r]);
      });
}

// delta = rowsum(dO O)
template <class T>
void row_products(const Space& space, Index rows, const T* a, Index a_stride, const T* b, Index b_stride,
                  Index head_dim, Acc<T>* product) {
  Kokkos::parallel_for(
      "attention_backward_delta", Range1(space, 0, rows), KOKKOS_LAMBDA(Index r) {
        const T* a_row = a + r * a_stride;
        const T* b_row = b + r * b_stride;
#if FOURFOLD_TILE_PRODUCTS
        fetch_row(b, b_stride, r, rows, head_dim);
#endif
        product[r] = lane_sum<Acc<T>>(head_dim, [=](Index i) { return a_row[i] * b_row[i]; });
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
        const Index end = tile.seen(r), hidden = tile.hidden(r), begin = hidden < end ? hidden : end;
        const T row_lse = lse[r], row_delta = delta[r];
        for (Index j = begin; j < end; ++j) {
          p[j] = fast_exp_below(scale * p[j] - row_lse);
          g[j] = p[j] * (g[j] - row_delta) * scale;
        }
        for (Index j = 0; j < begin; ++j) p[j] = g[j] = T(0);
        for (Index j = end; j < tile.width; ++j) p[j] = T(0);
        for (Index j = end; j < tile.width; ++j) g[j] = T(0);
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

// Rows of one head.
template <class T>
struct Rows {
  T* data = nullptr;
  Index stride = 0;
};

template <class A, class T>
Rows<const A> widened(const Space& space, Index rows, Index columns, Rows<const T> x, A* to) {
  if constexpr (std::is_same_v<A, T>) {
    return x;
  } else {
    Kokkos::parallel_for(
        "attention_widen", Range1(space, 0, rows), KOKKOS_LAMBDA(Index r) {
          for (Index i = 0; i < columns; ++i) to[r * columns + i] = x.data[r * x.stride + i];
        });
    return {to, columns};
  }
}

template <class A, class T>
void round_rows(const Space& space, Index rows, Index columns, Rows<A> wide, Rows<T> out) {
  Kokkos::parallel_for(
      "attention_round", Range1(space, 0, rows), KOKKOS_LAMBDA(Index r) {
        for (Index i = 0; i < columns; ++i) out.data[r * out.stride + i] = wide.data[r * wide.stride + i];
      });
}

// The products of a tile through the library; `load_keys` and `load_queries` name the operands of those that follow.
// Everything is in the type of the sums: what is stored in another is widened first, and its gradients are rounded at
// the end.
template <class T>
class LibraryProducts {
  using A = Acc<T>;

 public:
  static constexpr bool kOverwritesKeys = !kStoredAsComputed<T>;  // or adds to them

  LibraryProducts(const Space& space, const AttentionShape& shape, A* scratch)
      : space_(space), d_(shape.head_dim), keys_(shape.key_tokens) {
    k_wide_ = scratch;
    v_wide_ = k_wide_ + d_ * keys_;
    dk_ = v_wide_ + d_ * keys_;
    dv_ = dk_ + d_ * keys_;
    q_wide_ = dv_ + d_ * keys_;
    dout_wide_ = q_wide_ + d_ * query_block(shape);
  }

  static Index scratch(const AttentionShape& shape) {
    return kStoredAsComputed<T> ? 0 : shape.head_dim * (4 * shape.key_tokens + 2 * query_block(shape));
  }

  void load_keys(Rows<const T> k, Rows<const T> v, bool backward) {
    k_ = widened(space_, keys_, d_, k, k_wide_);
    v_ = widened(space_, keys_, d_, v, v_wide_);
    if (backward && !kStoredAsComputed<T>) fill<A>(space_, A(0), Vector<A>(dk_, 2 * d_ * keys_));
  }
  void load_queries(Index rows, Rows<const T> q, Rows<const T> dout) {
    q_ = widened(space_, rows, d_, q, q_wide_);
    if (dout.data != nullptr) dout_ = widened(space_, rows, d_, dout, dout_wide_);
  }

  void scores(const Tile& tile, A* s) const { by_keys(tile, q_, k_, s); }
  void weight_gradient(const Tile& tile, A* dp) const { by_keys(tile, dout_, v_, dp); }
  void values(const Tile& tile, const A* p, A* out, Index stride) const { by_queries(tile, p, v_, out, stride); }
  void query_gradient(const Tile& tile, const A* ds, A* dq, Index stride) const {
    by_queries(tile, ds, k_, dq, stride);
  }
  // dv and dk: the KV head's first row; `finish_keys` comes after its last query.
  void value_gradient(const Tile& tile, const A* p, T* dv, Index stride) const {
    transposed(tile, p, dout_, dv, stride, dv_);
  }
  void key_gradient(const Tile& tile, const A* ds, T* dk, Index stride) const {
    transposed(tile, ds, q_, dk, stride, dk_);
  }
  void finish_keys(T* dk, Index dk_stride, T* dv, Index dv_stride) const {
    if constexpr (!kStoredAsComputed<T>) {
      round_rows<A, T>(space_, keys_, d_, {dk_, d_}, {dk, dk_stride});
      round_rows<A, T>(space_, keys_, d_, {dv_, d_}, {dv, dv_stride});
    }
  }

 private:
  void by_keys(const Tile& tile, Rows<const A> x, Rows<const A> y, A* out) const {
    gemm<A>(space_, false, true, tile.rows, tile.width, d_, x.data, x.stride, y.data + tile.key * y.stride, y.stride,
            out, tile.stride);
  }
  void by_queries(const Tile& tile, const A* weights, Rows<const A> y, A* out, Index stride) const {
    gemm<A>(space_, false, false, tile.rows, d_, tile.width, weights, tile.stride, y.data + tile.key * y.stride,
            y.stride, out, stride, tile.first ? Write::overwrite : Write::add);
  }
  void transposed(const Tile& tile, const A* weights, Rows<const A> x, T* out, Index stride, A* wide) const {
    A* sum = wide + tile.key * d_;
    Index sum_stride = d_;
    if constexpr (kStoredAsComputed<T>) {
      sum = out + tile.key * stride;
      sum_stride = stride;
    }
    gemm<A>(space_, true, false, tile.width, d_, tile.rows, weights, tile.stride, x.data, x.stride, sum, sum_stride,
            Write::add);
  }
  const Space& space_;
  Index d_, keys_;
  Rows<const A> q_, k_, v_, dout_;
  A *k_wide_, *v_wide_, *dk_, *dv_, *q_wide_, *dout_wide_;
};

#if FOURFOLD_TILE_PRODUCTS

// The same with keys and values packed once a head and queries once a block, and without what the mask makes zero.
template <class T>
class PackedProducts {
  using A = Acc<T>;

 public:
  static constexpr bool kOverwritesKeys = true;

  PackedProducts(const Space& /*space*/, const AttentionShape& shape, A* scratch)
      : d_(shape.head_dim), keys_(shape.key_tokens), block_(query_block(shape)) {
    k_by_column_ = scratch;
    v_by_column_ = k_by_column_ + padded<A>(keys_) * d_;
    rows_by_key_ = v_by_column_ + padded<A>(keys_) * d_;
    q_by_row_ = rows_by_key_ + padded<A>(d_) * keys_;
    dout_by_row_ = q_by_row_ + padded<A>(d_) * block_;
    q_ = dout_by_row_ + padded<A>(d_) * block_;
    dout_ = q_ + d_ * block_;
    dk_ = dout_ + d_ * block_;
    dv_ = dk_ + d_ * keys_;
  }

  static Index scratch(const AttentionShape& shape) {
    const Index d = shape.head_dim;
    return 2 * padded<A>(shape.key_tokens) * d + (padded<A>(d) + 2 * d) * shape.key_tokens +
           2 * (padded<A>(d) + d) * query_block(shape);
  }

  void load_keys(Rows<const T> k, Rows<const T> v, bool backward) {
    pack_transposed(k.data, k.stride, keys_, d_, k_by_column_);
    if (backward) pack_transposed(v.data, v.stride, keys_, d_, v_by_column_);
    const Rows<const T> by_key = backward ? k : v;
    pack_rows(by_key.data, by_key.stride, keys_, d_, rows_by_key_);
    if (backward) std::fill(dk_, dv_ + d_ * keys_, A(0));
  }
  void load_queries(Index rows, Rows<const T> q, Rows<const T> dout) {
    pack_together(q.data, q.stride, rows, d_, q_);
    if (dout.data == nullptr) return;
    pack_together(dout.data, dout.stride, rows, d_, dout_);
    pack_rows(q.data, q.stride, rows, d_, q_by_row_);
    pack_rows(dout.data, dout.stride, rows, d_, dout_by_row_);
  }

  void scores(const Tile& tile, A* s) const { by_keys(tile, q_, k_by_column_, s); }
  void weight_gradient(const Tile& tile, A* dp) const { by_keys(tile, dout_, v_by_column_, dp); }
  void values(const Tile& tile, const A* p, A* out, Index stride) const { by_queries(tile, p, out, stride); }
  void query_gradient(const Tile& tile, const A* ds, A* dq, Index stride) const { by_queries(tile, ds, dq, stride); }
  // The sums over queries are kept together and written once.
  void value_gradient(const Tile& tile, const A* p, T* /*dv*/, Index /*stride*/) const {
    transposed(tile, p, dout_by_row_, dv_ + tile.key * d_);
  }
  void key_gradient(const Tile& tile, const A* ds, T* /*dk*/, Index /*stride*/) const {
    transposed(tile, ds, q_by_row_, dk_ + tile.key * d_);
  }
  void finish_keys(T* dk, Index dk_stride, T* dv, Index dv_stride) const {
    spread_rows(dk_, keys_, d_, dk, dk_stride);
    spread_rows(dv_, keys_, d_, dv, dv_stride);
  }

 private:
  // Columns that no row of a group sees are left as they are: the softmax writes zeros there.
  void by_keys(const Tile& tile, const A* x, const A* packed, A* out) const {
    tile_product<A>(true, tile.rows, padded<A>(tile.width), {x, d_, 1}, packed + tile.key * d_, kPanel<A> * d_, out,
                    tile.stride, false, [&](Index i, Index n) {
                      return TileSpan{0, d_, tile.seen(i + n - 1)};
                    });
  }
  void by_queries(const Tile& tile, const A* weights, A* out, Index stride) const {
    tile_product<A>(true, tile.rows, d_, {weights, tile.stride, 1}, rows_by_key_ + tile.key * kPanel<A>,
                    kPanel<A> * keys_, out, stride, !tile.first, [&](Index i, Index n) {
                      return TileSpan{std::min(tile.hidden(i), tile.seen(i + n - 1)), tile.seen(i + n - 1), d_};
                    });
  }
  void transposed(const Tile& tile, const A* weights, const A* packed, A* out) const {
    tile_product<A>(false, tile.width, d_, {weights, 1, tile.stride}, packed, kPanel<A> * tile.rows, out, d_, true,
                    [&](Index i, Index) {
                      return TileSpan{tile.first_row(i), tile.rows, d_};
                    });
  }

  Index d_, keys_, block_;
  A *k_by_column_, *v_by_column_, *rows_by_key_, *q_by_row_, *dout_by_row_, *q_, *dout_, *dk_, *dv_;
};

// Packing pays from some tens of queries on; generation has one. It is the work of one thread: several leave the
// products to the library, which shares them out.
bool packs(const AttentionShape& shape) {
  return kTileProducts && Space().concurrency() == 1 && shape.query_tokens >= 32;
}

#endif

Index tiles(const AttentionShape& shape) {
  return query_block(shape) * (2 * tile_stride(shape) + 2);
}

// Sums of a block of queries: in the output itself, or, where that is stored in another type, beside it.
template <class T>
Index sum_rows(const AttentionShape& shape) {
  return kStoredAsComputed<T> ? 0 : query_block(shape) * shape.head_dim;
}
template <class T>
Rows<Acc<T>> sums_of(Rows<T> out, const AttentionShape& shape, Acc<T>* beside) {
  if constexpr (kStoredAsComputed<T>) {
    return out;
  } else {
    return {beside, shape.head_dim};
  }
}

// Where the keys of a block of queries begin, by whole tiles.
Index first_tile(const AttentionShape& shape, const std::int32_t* first_key) {
  if (first_key == nullptr || !kHostSpace) return 0;
  const Index first = std::clamp<Index>(*first_key, 0, std::max<Index>(0, shape.key_tokens - 1));
  return first / kKeyBlock * kKeyBlock;
}

template <class T, class Products>
void forward(const Space& space, const AttentionShape& shape, Heads<const T> q, Heads<const T> k, Heads<const T> v,
             Heads<T> out, Acc<T>* lse, Acc<T>* scratch) {
  using A = Acc<T>;
  const A scale = static_cast<A>(shape.scale);
  const Index d = shape.head_dim;
  A* scores = scratch;
  A* max = scores + query_block(shape) * tile_stride(shape);
  A* sum = max + query_block(shape);
  A* beside = scratch + tiles(shape);
  Products products(space, shape, beside + sum_rows<T>(shape));
  for (Index b = 0; b < shape.batch; ++b) {
    for (Index h = 0; h < q.heads; ++h) {
      const Index g = kv_head(shape, h);
      const Index key_row = b * key_rows(shape);
      if (h == 0 || g != kv_head(shape, h - 1)) {
        products.load_keys({head_at(k, shape, key_row, g), k.stride}, {head_at(v, shape, key_row, g), v.stride}, false);
      }
      for (Index i0 = 0; i0 < shape.query_tokens; i0 += kQueryBlock) {
        const Index rows = std::min(kQueryBlock, shape.query_tokens - i0);
        const Index keys = visible_keys(shape, i0 + rows);
        const Index row = b * shape.query_tokens + i0;
        const Rows<T> out_block{head_at(out, shape, row, h), out.stride};
        const Rows<A> weighted = sums_of(out_block, shape, beside);
        products.load_queries(rows, {head_at(q, shape, row, h), q.stride}, {});
        const std::int32_t* first_key = shape.first_key == nullptr ? nullptr : shape.first_key + row;
        const Index begin = first_tile(shape, first_key);
        Index j0 = begin;
        do {  // once even where no key is seen, to clear the output
          const Index width = std::clamp<Index>(keys - j0, 0, kKeyBlock);
          const Tile tile{rows, width, tile_stride(shape), shape.first_query + i0, j0, first_key, j0 == begin};
          products.scores(tile, scores);
          tile_softmax<A>(space, tile, scale, scores, max, sum, weighted.data, weighted.stride, d);
          products.values(tile, scores, weighted.data, weighted.stride);
          j0 += kKeyBlock;
        } while (j0 < keys);
        A* row_lse = lse + (b * q.heads + h) * shape.query_tokens + i0;
        finish_rows(space, rows, max, sum, weighted.data, weighted.stride, out_block.data, out_block.stride, d,
                    row_lse);
      }
    }
  }
}

template <class T, class Products>
void backward(const Space& space, const AttentionShape& shape, Heads<const T> q, Heads<const T> k, Heads<const T> v,
              Heads<const T> out, const Acc<T>* lse, Heads<const T> dout, Heads<T> dq, Heads<T> dk, Heads<T> dv,
              Acc<T>* scratch) {
  using A = Acc<T>;
  const A scale = static_cast<A>(shape.scale);
  const Index d = shape.head_dim;
  A* scores = scratch;
  A* gradient = scores + query_block(shape) * tile_stride(shape);
  A* delta = gradient + query_block(shape) * tile_stride(shape);
  A* beside = scratch + tiles(shape);
  Products products(space, shape, beside + sum_rows<T>(shape));
  // Every key takes a sum over heads and queries, some keys over none.
  const bool all_heads = q.heads > 0 && kv_head(shape, 0) == 0 && kv_head(shape, q.heads - 1) == dk.heads - 1;
  if (!all_heads || !Products::kOverwritesKeys) {
    clear<T>(space, shape, dk);
    clear<T>(space, shape, dv);
  }
  for (Index b = 0; b < shape.batch; ++b) {
    for (Index h = 0; h < q.heads; ++h) {
      const Index g = kv_head(shape, h);
      const Index key_row = b * key_rows(shape);
      T* dk_head = head_at(dk, shape, key_row, g);
      T* dv_head = head_at(dv, shape, key_row, g);
      if (h == 0 || g != kv_head(shape, h - 1)) {
        products.load_keys({head_at(k, shape, key_row, g), k.stride}, {head_at(v, shape, key_row, g), v.stride}, true);
      }
      for (Index i0 = 0; i0 < shape.query_tokens; i0 += kQueryBlock) {
        const Index rows = std::min(kQueryBlock, shape.query_tokens - i0);
        const Index keys = visible_keys(shape, i0 + rows);
        const Index row = b * shape.query_tokens + i0;
        const T* dout_block = head_at(dout, shape, row, h);
        const Rows<T> dq_block{head_at(dq, shape, row, h), dq.stride};
        const Rows<A> dq_sums = sums_of(dq_block, shape, beside);
        products.load_queries(rows, {head_at(q, shape, row, h), q.stride}, {dout_block, dout.stride});
        row_products<T>(space, rows, dout_block, dout.stride, head_at(out, shape, row, h), out.stride, d, delta);
        const A* row_lse = lse + (b * q.heads + h) * shape.query_tokens + i0;
        const std::int32_t* first_key = shape.first_key == nullptr ? nullptr : shape.first_key + row;
        const Index begin = first_tile(shape, first_key);
        Index j0 = begin;
        do {  // once even where no key is seen, to clear dq
          const Index width = std::clamp<Index>(keys - j0, 0, kKeyBlock);
          const Tile tile{rows, width, tile_stride(shape), shape.first_query + i0, j0, first_key, j0 == begin};
          products.scores(tile, scores);
          products.weight_gradient(tile, gradient);
          tile_gradient<A>(space, tile, scale, row_lse, delta, scores, gradient);
          products.value_gradient(tile, scores, dv_head, dv.stride);
          products.query_gradient(tile, gradient, dq_sums.data, dq_sums.stride);
          products.key_gradient(tile, gradient, dk_head, dk.stride);
          j0 += kKeyBlock;
        } while (j0 < keys);
        if constexpr (!kStoredAsComputed<T>) round_rows(space, rows, d, dq_sums, dq_block);
      }
      if (h + 1 == q.heads || g != kv_head(shape, h + 1)) {
        products.finish_keys(dk_head, dk.stride, dv_head, dv.stride);
      }
    }
  }
}

}  // namespace

template <class T>
Index attention_scratch(const AttentionShape& shape) {
#if FOURFOLD_TILE_PRODUCTS
  if (packs(shape)) return tiles(shape) + sum_rows<T>(shape) + PackedProducts<T>::scratch(shape);
#endif
  return tiles(shape) + sum_rows<T>(shape) + LibraryProducts<T>::scratch(shape);
}

template <class T>
void attention_forward(const Space& space, const AttentionShape& shape, Heads<const T> q, Heads<const T> k,
                       Heads<const T> v, Heads<T> out, Vector<Acc<T>> lse, Vector<Acc<T>> scratch) {
#if FOURFOLD_TILE_PRODUCTS
  if (packs(shape)) {
    forward<T, PackedProducts<T>>(space, shape, q, k, v, out, lse.data(), scratch.data());
    return;
  }
#endif
  forward<T, LibraryProducts<T>>(space, shape, q, k, v, out, lse.data(), scratch.data());
}

template <class T>
void attention_backward(const Space& space, const AttentionShape& shape, Heads<const T> q, Heads<const T> k,
                        Heads<const T> v, Heads<const T> out, Vector<const Acc<T>> lse, Heads<const T> dout,
                        Heads<T> dq, Heads<T> dk, Heads<T> dv, Vector<Acc<T>> scratch) {
#if FOURFOLD_TILE_PRODUCTS
  if (packs(shape)) {
    backward<T, PackedProducts<T>>(space, shape, q, k, v, out, lse.data(), dout, dq, dk, dv, scratch.data());
    return;
  }
#endif
  backward<T, LibraryProducts<T>>(space, shape, q, k, v, out, lse.data(), dout, dq, dk, dv, scratch.data());
}

#define FOURFOLD_INSTANTIATE(T)                                                                                       \
  template Index attention_scratch<T>(const AttentionShape&);                                                         \
  template void attention_forward<T>(const Space&, const AttentionShape&, Heads<const T>, Heads<const T>,             \
                                     Heads<const T>, Heads<T>, Vector<Acc<T>>, Vector<Acc<T>>);                       \
  template void attention_backward<T>(const Space&, const AttentionShape&, Heads<const T>, Heads<const T>,            \
                                      Heads<const T>, Heads<const T>, Vector<const Acc<T>>, Heads<const T>, Heads<T>, \
                                      Heads<T>, Heads<T>, Vector<Acc<T>>);
FOURFOLD_INSTANTIATE(float)
FOURFOLD_INSTANTIATE(double)
FOURFOLD_INSTANTIATE(bf16)
#undef FOURFOLD_INSTANTIATE

}  // namespace fourfold::kernels
