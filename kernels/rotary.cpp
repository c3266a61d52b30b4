#include "kernels/rotary.hpp"

#include <cmath>

namespace fourfold::kernels {

namespace {

// Cosines and sines cost more than the turning, so one task makes those of a few positions and pairs and applies them
// to every sample and head.
constexpr int kPairs = 32;
constexpr Index kPositions = 16;

// The pairs [i0, i0 + n) of a row's heads.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION void turn_row(T* row, Index heads, Index head_dim, Index i0, Index n, const Acc<T>* cosine,
                                          const Acc<T>* sine) {
  for (Index h = 0; h < heads; ++h) {
    T* low = row + h * head_dim + i0;
    T* high = low + head_dim / 2;
    for (Index i = 0; i < n; ++i) {
      const Acc<T> a = low[i], b = high[i];
      low[i] = a * cosine[i] - b * sine[i];
      high[i] = a * sine[i] + b * cosine[i];
    }
  }
}

template <class T>
void turn(const char* label, const Space& space, Index heads, Index head_dim, Index first_col,
          const RowPositions& place, const RotaryAngles& given, double direction, Matrix<T> x) {
  const RotaryAngles angles = given;
  const RowPositions at = place;
  const Index rows = x.extent(0);
  const Index stride = x.extent(1);
  const Index half = head_dim / 2;
  // Rows that stand where they like have angles of their own.
  const Index tokens = at.at != nullptr || at.tokens > rows ? rows : at.tokens;
  Kokkos::parallel_for(
      label, Range1(space, 0, (tokens + kPositions - 1) / kPositions), KOKKOS_LAMBDA(Index block) {
        const Index first = block * kPositions;
        const Index last = first + kPositions < tokens ? first + kPositions : tokens;
        for (Index i0 = 0; i0 < half; i0 += kPairs) {
          const Index n = half - i0 < kPairs ? half - i0 : Index(kPairs);
          double frequency[kPairs];
          for (Index i = 0; i < n; ++i) frequency[i] = angles(i0 + i, head_dim);
          for (Index t = first; t < last; ++t) {
            Acc<T> cosine[kPairs], sine[kPairs];
            for (Index i = 0; i < n; ++i) {
              const double angle = static_cast<double>(at(t)) * frequency[i];
              cosine[i] = static_cast<Acc<T>>(std::cos(angle));
              sine[i] = static_cast<Acc<T>>(direction * std::sin(angle));
            }
            for (Index r = t; r < rows; r += tokens) {
              turn_row<T>(x.data() + r * stride + first_col, heads, head_dim, i0, n, cosine, sine);
            }
          }
        }
      });
}

}  // namespace

template <class T>
void rotary_forward(const Space& space, Index heads, Index head_dim, Index first_col, const RowPositions& rows,
                    const RotaryAngles& angles, Matrix<T> x) {
  turn<T>("rotary_forward", space, heads, head_dim, first_col, rows, angles, 1.0, x);
}

template <class T>
void rotary_backward(const Space& space, Index heads, Index head_dim, Index first_col, const RowPositions& rows,
                     const RotaryAngles& angles, Matrix<T> dx) {
  turn<T>("rotary_backward", space, heads, head_dim, first_col, rows, angles, -1.0, dx);
}

#define FOURFOLD_INSTANTIATE(T)                                                                                 \
  template void rotary_forward<T>(const Space&, Index, Index, Index, const RowPositions&, const RotaryAngles&,  \
                                  Matrix<T>);                                                                   \
  template void rotary_backward<T>(const Space&, Index, Index, Index, const RowPositions&, const RotaryAngles&, \
                                   Matrix<T>);
FOURFOLD_INSTANTIATE(float)
FOURFOLD_INSTANTIATE(double)
FOURFOLD_INSTANTIATE(bf16)
#undef FOURFOLD_INSTANTIATE

}  // namespace fourfold::kernels
