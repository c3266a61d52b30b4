#include "kernels/widened_product.hpp"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "kernels/gemm.hpp"

namespace fourfold::kernels {

namespace {

// Three blocks of floats stay in a third-level cache.
constexpr Index kSide = 1024;
// Between a block's rows: no power of two, or a column's elements would meet in a few cache sets.
constexpr Index kStride = kSide + 32;

template <class From, class To>
void convert_rows(const From* from, Index from_stride, Index rows, Index columns, To* to, Index to_stride,
                  const bf16* bias = nullptr) {
  for (Index r = 0; r < rows; ++r) {
    const From* in = from + r * from_stride;
    To* out = to + r * to_stride;
    if (bias == nullptr) {
      for (Index j = 0; j < columns; ++j) out[j] = in[j];
    } else {
      for (Index j = 0; j < columns; ++j) out[j] = in[j] + bias[j];
    }
  }
}

// One operand's block of up to kSide x kSide, widened as it is stored; remembered, for the next product may want it
// again.
class WideBlock {
 public:
  // op(X)[row, column]: x[row stride + column], or x[column stride + row] where transposed.
  const float* get(const bf16* x, Index stride, bool transposed, Index row, Index rows, Index column, Index columns) {
    const bf16* from = transposed ? x + column * stride + row : x + row * stride + column;
    if (from != held_) {
      convert_rows(from, stride, transposed ? columns : rows, transposed ? rows : columns, values_.data(), kStride);
      held_ = from;
    }
    return values_.data();
  }
  void forget() { held_ = nullptr; }

 private:
  std::vector<float> values_ = std::vector<float>(static_cast<std::size_t>(kSide * kStride));
  const bf16* held_ = nullptr;
};

struct Scratch {
  WideBlock a, b;
  std::vector<float> c = std::vector<float>(static_cast<std::size_t>(kSide * kStride));
};

}  // namespace

template <class C>
void widened_product(bool transpose_a, bool transpose_b, Index m, Index n, Index k, const bf16* a, Index lda,
                     const bf16* b, Index ldb, C* c, Index ldc, bool add, const bf16* bias) {
  thread_local Scratch scratch;
  const Space space;
  const auto block = [&](Index i, Index j) {
    const Index rows = std::min(kSide, m - i), columns = std::min(kSide, n - j);
    float* sum = nullptr;
    Index stride = kStride;
    if constexpr (std::is_same_v<C, float>) {
      sum = c + i * ldc + j;
      stride = ldc;
    } else {
      sum = scratch.c.data();
    }
    for (Index l = 0; l < k; l += kSide) {
      const Index inner = std::min(kSide, k - l);
      const float* left = scratch.a.get(a, lda, transpose_a, i, rows, l, inner);
      const float* right = scratch.b.get(b, ldb, transpose_b, l, inner, j, columns);
      gemm<float>(space, transpose_a, transpose_b, rows, columns, inner, left, kStride, right, kStride, sum, stride,
                  add || l > 0 ? Write::add : Write::overwrite);
    }
    const bf16* added = bias == nullptr ? nullptr : bias + j;
    if (added != nullptr || !std::is_same_v<C, float>) {
      convert_rows(sum, stride, rows, columns, c + i * ldc + j, ldc, added);
    }
  };
  scratch.a.forget();
  scratch.b.forget();
  // The operand that has fewer blocks stays where it is while the other's go by.
  if (m > n) {
    for (Index j = 0; j < n; j += kSide) {
      for (Index i = 0; i < m; i += kSide) block(i, j);
    }
  } else {
    for (Index i = 0; i < m; i += kSide) {
      for (Index j = 0; j < n; j += kSide) block(i, j);
    }
  }
}

template void widened_product<float>(bool, bool, Index, Index, Index, const bf16*, Index, const bf16*, Index, float*,
                                     Index, bool, const bf16*);
template void widened_product<bf16>(bool, bool, Index, Index, Index, const bf16*, Index, const bf16*, Index, bf16*,
                                    Index, bool, const bf16*);

}  // namespace fourfold::kernels
