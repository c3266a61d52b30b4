// Layer norm and RMS norm over the last dim, which may be split over ranks: each pass leaves per-row partial sums that
// the caller reduces over the splitting axis (or not, where one rank holds the whole row) before the next pass. `width`
// is the whole (global) D; the views hold the local columns.
//
//   layer norm: y = (x - mean) rstd w + b      sums: row_sum(x) -> mean; centred_squares(x, mean) -> rstd
//   RMS norm:   y = x rstd w                   sums: row_squares(x) -> rstd
//   backward, g = dy w, x^ = (x - mean) rstd:  c1 = sum g (layer norm only), c2 = sum g x^
//               dx = rstd (g - c1/D - x^ c2/D)
#pragma once

#include "kernels/types.hpp"

namespace fourfold::kernels {

template <class T>
void norm_row_sum(const Space& space, Matrix<const T> x, Vector<Acc<T>> sum);
template <class T>
void norm_row_squares(const Space& space, Matrix<const T> x, Vector<Acc<T>> squares);
// squares[r] = sum_j (x[r, j] - sum[r]/width)^2; `sum` is the reduced row sum.
template <class T>
void norm_centred_squares(const Space& space, Matrix<const T> x, Vector<const Acc<T>> sum, Index width,
                          Vector<Acc<T>> squares);

// mean = sum/width, rstd = 1/sqrt(squares/width + eps); both are kept for backward. b may be empty (extent 0). Squares
// that overflow (values beyond 1e19 in float) make rstd and the row NaN.
template <class T>
void layer_norm_forward(const Space& space, Matrix<const T> x, Vector<const Acc<T>> sum, Vector<const Acc<T>> squares,
                        Index width, double eps, Vector<const T> w, Vector<const T> b, Matrix<T> y, Vector<Acc<T>> mean,
                        Vector<Acc<T>> rstd);
template <class T>
void rms_norm_forward(const Space& space, Matrix<const T> x, Vector<const Acc<T>> squares, Index width, double eps,
                      Vector<const T> w, Matrix<T> y, Vector<Acc<T>> rstd);

// Rows that one rank holds whole and that follow each other in memory, in one pass: h = x + branch, left in `branch`
// (empty: h is x), y = norm(h). The same sums in the same order as by the passes above; b may be empty.
template <class T>
void layer_norm_rows(const Space& space, Matrix<const T> x, Matrix<T> branch, double eps, Vector<const T> w,
                     Vector<const T> b, Matrix<T> y, Vector<Acc<T>> mean, Vector<Acc<T>> rstd);
template <class T>
void rms_norm_rows(const Space& space, Matrix<const T> x, Matrix<T> branch, double eps, Vector<const T> w, Matrix<T> y,
                   Vector<Acc<T>> rstd);
// Their way back: dx = residual + the gradient of the norm (residual may be empty). RMS norm: empty mean.
template <class T>
void norm_backward_rows(const Space& space, Matrix<const T> x, Vector<const Acc<T>> mean, Vector<const Acc<T>> rstd,
                        Vector<const T> w, Matrix<const T> dy, Matrix<const T> residual, Matrix<T> dx);

// Row sums of the way back. layer norm: both; RMS norm: pass an empty mean and an empty c1.
template <class T>
void norm_backward_sums(const Space& space, Matrix<const T> x, Vector<const Acc<T>> mean, Vector<const Acc<T>> rstd,
                        Vector<const T> w, Matrix<const T> dy, Vector<Acc<T>> c1, Vector<Acc<T>> c2);
// dx from the reduced sums. RMS norm: empty mean and c1.
template <class T>
void norm_backward_input(const Space& space, Matrix<const T> x, Vector<const Acc<T>> mean, Vector<const Acc<T>> rstd,
                         Vector<const T> w, Matrix<const T> dy, Vector<const Acc<T>> c1, Vector<const Acc<T>> c2,
                         Index width, Matrix<T> dx);
// dw (+)= sum over rows of dy x^, db (+)= sum of dy (db may be empty); rows in ascending order.
template <class T>
void norm_backward_weight(const Space& space, Matrix<const T> x, Vector<const Acc<T>> mean, Vector<const Acc<T>> rstd,
                          Matrix<const T> dy, Vector<Acc<T>> dw, Vector<Acc<T>> db, Write write);

}  // namespace fourfold::kernels
