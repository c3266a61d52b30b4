// Rotary positions, half-split pairs: (x_i, x_{i+d/2}) turns by position * theta^(-2i/d), i < d/2. Su et al. 2021.
#pragma once

#include "kernels/types.hpp"

namespace fourfold::kernels {

// In place on `heads` heads of size d side by side from column `first_col` of x (R x anything). Row r stands at
// position offset + r % tokens. Backward turns the other way.
template <class T>
void rotary_forward(const Space& space, Index heads, Index head_dim, Index first_col, Index tokens, Index offset,
                    double theta, Matrix<T> x);
template <class T>
void rotary_backward(const Space& space, Index heads, Index head_dim, Index first_col, Index tokens, Index offset,
                     double theta, Matrix<T> dx);

}  // namespace fourfold::kernels
