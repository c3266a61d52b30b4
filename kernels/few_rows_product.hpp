// Y = X W^T (+ Y) (+ bias) for a few rows of X, on a host: what generation does. Every weight is read once for little
// work, so the rate is that of memory. Four rows of W are read in turns that lie a quarter of W apart: the prefetchers
// follow each, and more lines are on their way at a time than along one (measured on AMD Milan: 1.5 times the rate).
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/lanes.hpp"
#include "kernels/library_product.hpp"
#include "kernels/tile_product.hpp"

namespace fourfold::kernels {

inline constexpr Index kFewRows = 4;

template <class T, class C>
bool has_few_rows(const Operands<T, C>& p) {
  return std::is_same_v<Acc<T>, float> && p.m <= kFewRows && !p.transpose_a && p.transpose_b;
}

#if FOURFOLD_TILE_PRODUCTS

using FloatVector = TileVector<float>::type;

inline void load_floats(const float* x, FloatVector& to) {
  std::memcpy(&to, x, sizeof(to));
}

inline void load_floats(const bf16* x, FloatVector& to) {
  typedef std::uint16_t Half __attribute__((vector_size(kTileVectorBytes / 2)));
  typedef std::uint32_t Word __attribute__((vector_size(kTileVectorBytes)));
  Half half;
  std::memcpy(&half, x, sizeof(half));
  const Word word = __builtin_convertvector(half, Word) << 16;
  std::memcpy(&to, &word, sizeof(to));
}

// sums[s] = sum of x[l] w[s stride + l].
template <int kStreams, class T>
void row_products(Index k, const T* x, const T* w, Index stride, float* sums) {
  constexpr Index kSize = TileVector<float>::kSize, kVectors = 2;
  FloatVector sum[kStreams][kVectors] = {};
  Index l = 0;
  for (; l + kVectors * kSize <= k; l += kVectors * kSize) {
    FloatVector left[kVectors];
    for (Index v = 0; v < kVectors; ++v) load_floats(x + l + v * kSize, left[v]);
    for (int s = 0; s < kStreams; ++s) {
      for (Index v = 0; v < kVectors; ++v) {
        FloatVector right;
        load_floats(w + s * stride + l + v * kSize, right);
        sum[s][v] += left[v] * right;
      }
    }
  }
  for (int s = 0; s < kStreams; ++s) {
    float lanes[kSize];
    const FloatVector both = sum[s][0] + sum[s][1];
    std::memcpy(lanes, &both, sizeof(lanes));
    float total = 0;
    for (const float lane : lanes) total += lane;
    for (Index rest = l; rest < k; ++rest) total += float(x[rest]) * float(w[s * stride + rest]);
    sums[s] = total;
  }
}

#else

template <int kStreams, class T>
void row_products(Index k, const T* x, const T* w, Index stride, float* sums) {
  for (int s = 0; s < kStreams; ++s) {
    sums[s] = lane_sum<float>(k, [=](Index l) { return float(x[l]) * float(w[s * stride + l]); });
  }
}

#endif

template <int kStreams, class T, class C>
void few_rows_from(const Operands<T, C>& p, Index j, Index stride) {
  for (Index i = 0; i < p.m; ++i) {
    float sums[kStreams];
    row_products<kStreams>(p.k, p.a + i * p.lda, p.b + j * p.ldb, stride * p.ldb, sums);
    for (int s = 0; s < kStreams; ++s) {
      const Index column = j + s * stride;
      C& y = p.c[i * p.ldc + column];
      const float before = p.add ? float(y) : p.bias != nullptr ? float(p.bias[column]) : 0.0f;
      y = before + sums[s];
    }
  }
}

template <class T, class C>
void few_rows_product(const Space& space, const Operands<T, C>& p) {
  constexpr int kStreams = 4;
  const Index quarter = p.n / kStreams;
  Kokkos::parallel_for("few_rows_product", Range1(space, 0, quarter + p.n % kStreams), [=](const Index j) {
    if (j < quarter) {
      few_rows_from<kStreams>(p, j, quarter);
    } else {
      few_rows_from<1>(p, (kStreams - 1) * quarter + j, 0);
    }
  });
}

}  // namespace fourfold::kernels
