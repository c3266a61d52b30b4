// Dropout whose mask is a function of (seed, purpose, step, global element), so it does not depend on the grid and
// needs no storage: backward draws it again.
#pragma once

#include "kernels/philox.hpp"
#include "kernels/types.hpp"

namespace fourfold::kernels {

// Where the local rows and columns stand in the whole step's activation of width `width`:
// local row r is sample first_sample + r / tokens at position first_token + r % tokens of a sequence of `sequence`.
struct GlobalRows {
  Index first_sample = 0;
  Index tokens = 1;
  Index first_token = 0;
  Index sequence = 1;
  Index first_col = 0;
  Index width = 0;
};

// y = x * keep / (1 - p), keep with probability 1 - p; y may be x. Its own adjoint: backward is the same
// call on dy.
template <class T>
void dropout_forward(const Space& space, Matrix<const T> x, RandomStream stream, double p, const GlobalRows& rows,
                     Matrix<T> y);

}  // namespace fourfold::kernels
