// A product by the library of the machine that Space is on. Two files define it, of which a program has one:
// library_product.cpp (oneDNN and BLAS) and library_product_cuda.cpp (cuBLASLt).
#pragma once

#include "kernels/types.hpp"

namespace fourfold::kernels {

// C = op(A) op(B) (+ C) (+ bias in every row). `bias` may be null; never with `add`.
template <class T, class C>
struct Operands {
  bool transpose_a, transpose_b;
  Index m, n, k;
  const T* a;
  Index lda;
  const T* b;
  Index ldb;
  C* c;
  Index ldc;
  bool add;
  const T* bias;
};

// Whether the library takes this product; sizes are above zero.
template <class T, class C>
bool library_takes(const Operands<T, C>& p);

template <class T, class C>
void library_product(const Space& space, const Operands<T, C>& p);

}  // namespace fourfold::kernels
