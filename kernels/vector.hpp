// Small operations on flat arrays.
#pragma once

#include "kernels/types.hpp"

namespace fourfold::kernels {

template <class T>
void fill(const Space& space, T value, Vector<T> x);
template <class T>
void copy(const Space& space, Vector<const T> x, Vector<T> y);
template <class T, class Y = T>
void add(const Space& space, Vector<const T> x, Vector<Y> y);  // y += x; Y: T or Acc<T>
// y = x in bf16. For tensors that the sums of several ranks, or of several products, make in float.
void round_to(const Space& space, Vector<const float> x, Vector<bf16> y);
template <class T>
void scale(const Space& space, double factor, Vector<T> x);

// Sum of squares and plain sum in double, in one fixed order (blocks of 4096 in sequence, whatever the thread count).
template <class T>
double sum_squares(const Space& space, Vector<const T> x);
template <class T>
double sum(const Space& space, Vector<const T> x);
template <class T>
double max_abs(const Space& space, Vector<const T> x);
template <class T>
Index count_nonfinite(const Space& space, Vector<const T> x);

// x -> round(x 2^bits) 2^-bits, ties to even, plus 0.0 so that no -0 survives (the dyadic deck).
template <class T>
void snap(const Space& space, int bits, Vector<T> x);

// Row-block copies: dst rows [0, R) columns [dst_col, dst_col + n) = src columns [src_col, src_col + n).
template <class T>
void copy_columns(const Space& space, Matrix<const T> src, Index src_col, Index n, Matrix<T> dst, Index dst_col);

}  // namespace fourfold::kernels
