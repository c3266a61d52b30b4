// Rotary positions, half-split pairs: (x_i, x_{i+d/2}) turns by position * theta^(-2i/d), i < d/2. Su et al. 2021.
#pragma once

#include <cmath>
#include <numbers>

#include "kernels/row_positions.hpp"
#include "kernels/types.hpp"

namespace fourfold::kernels {

// The angle of pair i for each position: theta^(-2i/d), and what longer contexts make of it.
//   linear   all angles / factor (Chen et al. 2023)
//   llama3   those of wavelengths above original / low / factor, below original / high as they are, between the two a
//            mean by original / wavelength (Llama 3.1)
struct RotaryAngles {
  enum class Scaling { none, linear, llama3 };

  RotaryAngles(double theta_in = 10000.0) : theta(theta_in) {}
  double theta;
  Scaling scaling = Scaling::none;
  double factor = 1, low = 1, high = 4, original = 8192;

  KOKKOS_FORCEINLINE_FUNCTION double operator()(Index pair, Index head_dim) const {
    const double angle = std::pow(theta, -2.0 * static_cast<double>(pair) / static_cast<double>(head_dim));
    if (scaling == Scaling::none) return angle;
    if (scaling == Scaling::linear) return angle / factor;
    const double turns = original * angle / (2 * std::numbers::pi);  // original / wavelength
    if (turns < low) return angle / factor;
    if (turns > high) return angle;
    const double smooth = (turns - low) / (high - low);
    return (1 - smooth) * angle / factor + smooth * angle;
  }
};

// In place on `heads` heads of size d side by side from column `first_col` of x (R x anything). Backward turns the
// other way.
template <class T>
void rotary_forward(const Space& space, Index heads, Index head_dim, Index first_col, const RowPositions& rows,
                    const RotaryAngles& angles, Matrix<T> x);
template <class T>
void rotary_backward(const Space& space, Index heads, Index head_dim, Index first_col, const RowPositions& rows,
                     const RotaryAngles& angles, Matrix<T> dx);

}  // namespace fourfold::kernels
