// Products of tiles that stay in the caches, on a host: C (+)= A B with B packed beforehand. Libraries pack both sides
// in every call, which on tiles of 64 x 256 costs a quarter of their rate, and cannot leave out what a mask makes zero.
//
// Packed: panels of kPanel columns, in a panel row after row, missing columns 0. B[l, j] is at
// panel(j / kPanel) + l kPanel + j % kPanel. One vector pair of a panel and six rows of A fill 12 registers with sums.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/types.hpp"

// GCC 12, clang
#if defined(__has_builtin) && !defined(__CUDACC__)
#if __has_builtin(__builtin_shufflevector)
#define FOURFOLD_TILE_PRODUCTS 1
#endif
#endif
#ifndef FOURFOLD_TILE_PRODUCTS
#define FOURFOLD_TILE_PRODUCTS 0
#endif

namespace fourfold::kernels {

inline constexpr bool kTileProducts =
    FOURFOLD_TILE_PRODUCTS && Kokkos::SpaceAccessibility<Kokkos::HostSpace, Space::memory_space>::accessible;

#if FOURFOLD_TILE_PRODUCTS

#if defined(__AVX512F__)
inline constexpr int kTileVectorBytes = 64;
#else
inline constexpr int kTileVectorBytes = 32;
#endif

template <class T>
struct TileVector {
  typedef T type __attribute__((vector_size(kTileVectorBytes)));
  static constexpr Index kSize = kTileVectorBytes / static_cast<Index>(sizeof(T));
};

// Columns of a panel, and rows of A that are taken together.
template <class T>
inline constexpr Index kPanel = 2 * TileVector<T>::kSize;
inline constexpr Index kTileRows = 6;

template <class T>
constexpr Index padded(Index columns) {
  return (columns + kPanel<T> - 1) / kPanel<T> * kPanel<T>;
}

// Rows of a head lie far apart: asks for the cache lines of one some rows before it is read.
template <int Write = 0, class T>
void fetch_row(const T* x, Index stride, Index row, Index rows, Index columns) {
  constexpr Index kAhead = 24, kLine = 64 / static_cast<Index>(sizeof(T));
  if (row + kAhead >= rows) return;
  for (Index j = 0; j < columns; j += kLine) __builtin_prefetch(x + (row + kAhead) * stride + j, Write);
}

// Everything is packed in the type of the sums A; rows may be stored in another, T.
template <class From, class To>
void convert_run(const From* from, Index n, To* to) {
  if constexpr (std::is_same_v<From, To>) {
    std::memcpy(to, from, sizeof(To) * static_cast<std::size_t>(n));
  } else {
    for (Index j = 0; j < n; ++j) to[j] = from[j];
  }
}

// x itself, its rows together.
template <class A, class T>
void pack_together(const T* x, Index stride, Index rows, Index columns, A* packed) {
  for (Index r = 0; r < rows; ++r) {
    fetch_row(x, stride, r, rows, columns);
    convert_run(x + r * stride, columns, packed + r * columns);
  }
}

// The way back.
template <class A, class T>
void spread_rows(const A* packed, Index rows, Index columns, T* x, Index stride) {
  for (Index r = 0; r < rows; ++r) {
    fetch_row<1>(x, stride, r, rows, columns);
    convert_run(packed + r * columns, columns, x + r * stride);
  }
}

// B = x, rows x columns.
template <class A, class T>
void pack_rows(const T* x, Index stride, Index rows, Index columns, A* packed) {
  for (Index r = 0; r < rows; ++r) {
    fetch_row(x, stride, r, rows, columns);
    for (Index first = 0; first < columns; first += kPanel<A>) {
      const Index n = columns - first < kPanel<A> ? columns - first : kPanel<A>;
      const T* from = x + r * stride + first;
      A* to = packed + first * rows + r * kPanel<A>;
      if (n == kPanel<A>) {
        convert_run(from, kPanel<A>, to);
      } else {
        for (Index j = 0; j < kPanel<A>; ++j) to[j] = j < n ? static_cast<A>(from[j]) : A(0);
      }
    }
  }
}

template <class T>
struct EightVector {
  typedef T type __attribute__((vector_size(8 * sizeof(T))));
};
// Eight numbers that are stored as T.
template <class A, class T>
void load_eight(const T* from, typename EightVector<A>::type& to) {
  if constexpr (std::is_same_v<A, T>) {
    std::memcpy(&to, from, sizeof(to));
  } else {
    static_assert(std::is_same_v<T, bf16>);
    typename EightVector<std::uint16_t>::type halves;
    std::memcpy(&halves, from, sizeof(halves));
    const auto words = __builtin_convertvector(halves, typename EightVector<std::uint32_t>::type) << 16;
    std::memcpy(&to, &words, sizeof(to));
  }
}
// to[l to_stride + j] = x[j stride + l] for j, l < 8.
template <class A, class T>
void turn_square(const T* x, Index stride, A* to, Index to_stride) {
  using Eight = typename EightVector<A>::type;
  Eight row[8], pair[8], four[8];
  for (int j = 0; j < 8; ++j) load_eight<A>(x + j * stride, row[j]);
  for (int j = 0; j < 8; j += 2) {
    pair[j] = __builtin_shufflevector(row[j], row[j + 1], 0, 8, 2, 10, 4, 12, 6, 14);
    pair[j + 1] = __builtin_shufflevector(row[j], row[j + 1], 1, 9, 3, 11, 5, 13, 7, 15);
  }
  for (int j = 0; j < 8; j += 4) {
    for (int i = 0; i < 2; ++i) {
      four[j + i] = __builtin_shufflevector(pair[j + i], pair[j + i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      four[j + i + 2] = __builtin_shufflevector(pair[j + i], pair[j + i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  for (int i = 0; i < 4; ++i) {
    const Eight low = __builtin_shufflevector(four[i], four[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    const Eight high = __builtin_shufflevector(four[i], four[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    std::memcpy(to + i * to_stride, &low, sizeof(Eight));
    std::memcpy(to + (i + 4) * to_stride, &high, sizeof(Eight));
  }
}

// B = x^T: x has B's columns as rows.
template <class A, class T>
void pack_transposed(const T* x, Index stride, Index rows, Index columns, A* packed) {
  constexpr Index kSquare = 8;
  for (Index r0 = 0; r0 < padded<A>(rows); r0 += kSquare) {
    A* to = packed + r0 / kPanel<A> * kPanel<A> * columns + r0 % kPanel<A>;
    for (Index r = r0; r < std::min(r0 + kSquare, rows); ++r) fetch_row(x, stride, r, rows, columns);
    Index l = 0;
    if (r0 + kSquare <= rows) {
      for (; l + kSquare <= columns; l += kSquare) {
        turn_square(x + r0 * stride + l, stride, to + l * kPanel<A>, kPanel<A>);
      }
    }
    for (; l < columns; ++l) {
      for (Index j = 0; j < kSquare; ++j) {
        to[l * kPanel<A> + j] = r0 + j < rows ? static_cast<A>(x[(r0 + j) * stride + l]) : A(0);
      }
    }
  }
}

// A[i, l] = a[i row + l step].
template <class T>
struct TileFactor {
  const T* a = nullptr;
  Index row = 0, step = 0;
};

// C[i, j] (+)= sum over l < k for the Rows rows of A and the first n columns of a panel.
template <class T, class Row>
struct PanelProduct;
template <class T, Index... I>
struct PanelProduct<T, std::integer_sequence<Index, I...>> {
  static void run(Index k, const TileFactor<T>& factor, const T* panel, Index n, T* c, Index c_stride, bool add) {
    using Vec = typename TileVector<T>::type;
    constexpr Index kSize = TileVector<T>::kSize;
    Vec low[] = {(static_cast<void>(I), Vec{})...};
    Vec high[] = {(static_cast<void>(I), Vec{})...};
    const T* a = factor.a;
    for (Index l = 0; l < k; ++l) {
      Vec left, right;
      std::memcpy(&left, panel, sizeof(Vec));
      std::memcpy(&right, panel + kSize, sizeof(Vec));
      ((low[I] += a[I * factor.row] * left, high[I] += a[I * factor.row] * right), ...);
      panel += kPanel<T>;
      a += factor.step;
    }
    (store(low[I], high[I], n, c + I * c_stride, add), ...);
  }

 private:
  static void store(typename TileVector<T>::type low, typename TileVector<T>::type high, Index n, T* c, bool add) {
    using Vec = typename TileVector<T>::type;
    constexpr Index kSize = TileVector<T>::kSize;
    if (n == kPanel<T>) {
      if (add) {
        Vec left, right;
        std::memcpy(&left, c, sizeof(Vec));
        std::memcpy(&right, c + kSize, sizeof(Vec));
        low += left;
        high += right;
      }
      std::memcpy(c, &low, sizeof(Vec));
      std::memcpy(c + kSize, &high, sizeof(Vec));
    } else {
      for (Index j = 0; j < n; ++j) {
        const T sum = j < kSize ? low[j] : high[j - kSize];
        c[j] = add ? c[j] + sum : sum;
      }
    }
  }
};

// The same for 1 to kTileRows rows.
template <class T>
void panel_product(Index rows, Index k, const TileFactor<T>& factor, const T* panel, Index n, T* c, Index c_stride,
                   bool add) {
  const auto run = [&]<Index Rows>(std::integral_constant<Index, Rows>) {
    PanelProduct<T, std::make_integer_sequence<Index, Rows>>::run(k, factor, panel, n, c, c_stride, add);
  };
  switch (rows) {
    case 1:
      return run(std::integral_constant<Index, 1>());
    case 2:
      return run(std::integral_constant<Index, 2>());
    case 3:
      return run(std::integral_constant<Index, 3>());
    case 4:
      return run(std::integral_constant<Index, 4>());
    case 5:
      return run(std::integral_constant<Index, 5>());
    default:
      return run(std::integral_constant<Index, kTileRows>());
  }
}

// C (+)= A B, C rows x columns, B in panels `panel_size` elements apart. span(i, count) tells of the rows
// [i, i + count) which terms l are not all zero and how many columns are of interest (the rest of C may stay as it is);
// an empty range writes zeros, or adds nothing. What is taken again and again is better small: the panel with
// panels_first, the rows of A without.
struct TileSpan {
  Index first = 0, last = 0, columns = 0;
};
template <class T, class Span>
void tile_product(bool panels_first, Index rows, Index columns, const TileFactor<T>& factor, const T* panels,
                  Index panel_size, T* c, Index c_stride, bool add, Span span) {
  const auto block = [&](Index i, Index panel) {
    const Index j = panel * kPanel<T>;
    const Index count = rows - i < kTileRows ? rows - i : kTileRows;
    const TileSpan part = span(i, count);
    if (part.columns <= j) return;
    const Index n = columns - j < kPanel<T> ? columns - j : kPanel<T>;
    const Index k = part.last > part.first ? part.last - part.first : 0;
    const TileFactor<T> from{factor.a + i * factor.row + part.first * factor.step, factor.row, factor.step};
    panel_product<T>(count, k, from, panels + panel * panel_size + part.first * kPanel<T>, n, c + i * c_stride + j,
                     c_stride, add);
  };
  const Index panel_count = padded<T>(columns) / kPanel<T>;
  if (panels_first) {
    for (Index panel = 0; panel < panel_count; ++panel) {
      for (Index i = 0; i < rows; i += kTileRows) block(i, panel);
    }
  } else {
    for (Index i = 0; i < rows; i += kTileRows) {
      for (Index panel = 0; panel < panel_count; ++panel) block(i, panel);
    }
  }
}

#endif

}  // namespace fourfold::kernels
