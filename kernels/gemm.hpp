// Matrix products: the one interface. fp32 through oneDNN, fp64 through BLAS; a plain Kokkos loop is the reference that
// tests compare with. The product libraries use the threads this process owns (set_product_threads, one by default).
#pragma once

#include "kernels/types.hpp"

namespace fourfold::kernels {

void set_product_threads(int threads);

// C = op(A) op(B) (+ C). All row-major with leading dimensions in elements; op(A) is m x k, op(B) is k x n, C is m x n.
// Any of m, n, k may be zero (k = 0 with Write::overwrite clears C).
template <class T>
void gemm(const Space& space, bool transpose_a, bool transpose_b, Index m, Index n, Index k, const T* a, Index lda,
          const T* b, Index ldb, T* c, Index ldc, Write write = Write::overwrite);

// The same by a triple loop, sums in ascending k.
template <class T>
void gemm_reference(const Space& space, bool transpose_a, bool transpose_b, Index m, Index n, Index k, const T* a,
                    Index lda, const T* b, Index ldb, T* c, Index ldc, Write write = Write::overwrite);

// Y = X W^T.  x: R x k, w: n x k (out x in), y: R x n.
template <class T>
void linear_forward(const Space& space, Matrix<const T> x, Matrix<const T> w, Matrix<T> y);
// dX = dY W.
template <class T>
void linear_backward_input(const Space& space, Matrix<const T> dy, Matrix<const T> w, Matrix<T> dx);
// dW (+)= dY^T X.
template <class T>
void linear_backward_weight(const Space& space, Matrix<const T> dy, Matrix<const T> x, Matrix<T> dw, Write write);

}  // namespace fourfold::kernels
