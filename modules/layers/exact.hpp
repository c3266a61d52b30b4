// The dyadic deck's guard: sums that stay exact in any order.
#pragma once

#include "kernels/types.hpp"

namespace fourfold {

// A sum of `terms` products of elements of a and b on each of `ranks` ranks; every term is a multiple of 2^-bits. Ends
// the run where its absolute value may leave the range in which fp64 is exact.
template <class T>
void check_exact_sum(kernels::Vector<const T> a, kernels::Vector<const T> b, kernels::Index terms, int bits, int ranks);

}  // namespace fourfold
