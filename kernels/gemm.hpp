// Matrix products: the one interface. fp32 and bf16 through oneDNN, fp64 through BLAS; a plain Kokkos loop is the
// reference that tests compare with. The product libraries use the threads this process owns (set_product_threads, one
// by default).
//
// Operands are of type T, results of T or of Acc<T>: with bf16, sums are made in float and rounded once, or not at all.
#pragma once

#include "kernels/types.hpp"

namespace fourfold::kernels {

void set_product_threads(int threads);

// C = op(A) op(B) (+ C). All row-major with leading dimensions in elements; op(A) is m x k, op(B) is k x n, C is m x n.
// Any of m, n, k may be zero (k = 0 with Write::overwrite clears C). A bf16 C is only overwritten: adding to it would
// round every time.
template <class T, class C = T>
void gemm(const Space& space, bool transpose_a, bool transpose_b, Index m, Index n, Index k, const T* a, Index lda,
          const T* b, Index ldb, C* c, Index ldc, Write write = Write::overwrite);

// The same by a triple loop, sums in ascending k.
template <class T, class C = T>
void gemm_reference(const Space& space, bool transpose_a, bool transpose_b, Index m, Index n, Index k, const T* a,
                    Index lda, const T* b, Index ldb, C* c, Index ldc, Write write = Write::overwrite);

// Y = X W^T + bias.  x: R x k, w: n x k (out x in), y: R x n, bias: n or empty.
template <class T, class C = T>
void linear_forward(const Space& space, Matrix<const T> x, Matrix<const T> w, Matrix<C> y, Vector<const T> bias = {});
// dX (+)= dY W.
template <class T, class C = T>
void linear_backward_input(const Space& space, Matrix<const T> dy, Matrix<const T> w, Matrix<C> dx,
                           Write write = Write::overwrite);
// dW (+)= dY^T X.
template <class T>
void linear_backward_weight(const Space& space, Matrix<const T> dy, Matrix<const T> x, Matrix<Acc<T>> dw, Write write);

}  // namespace fourfold::kernels
