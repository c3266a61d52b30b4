// Copies of boxes between row-major arrays.
#pragma once

#include "kernels/types.hpp"

namespace fourfold::kernels {

// A box of n0 x n1 rows of n2 contiguous elements; strides in elements.
struct BoxCopy {
  Index n0 = 0, n1 = 0, n2 = 0;
  Index from = 0, from_stride0 = 0, from_stride1 = 0;
  Index to = 0, to_stride0 = 0, to_stride1 = 0;
};

// target[to + i to_stride0 + j to_stride1 + k] = source[from + i from_stride0 + j from_stride1 + k].
template <class T>
void copy_box(const Space& space, const BoxCopy& box, Vector<const T> source, Vector<T> target);
// The same, adding to the target.
template <class T>
void add_box(const Space& space, const BoxCopy& box, Vector<const T> source, Vector<T> target);

}  // namespace fourfold::kernels
