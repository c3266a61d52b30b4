#include "kernels/rotary.hpp"

#include <cmath>

namespace fourfold::kernels {

namespace {

// Cosines and sines cost more than the turning, so one task makes those of a few positions and pairs and applies them
// to every sample and head.
constexpr int kPairs = 32;
constexpr Index kPositions = 16;

template <class T>
void turn(const char* label, const Space& space, Index heads, Index head_dim, Index first_col, Index tokens,
          Index offset, double theta, double direction, Matrix<T> x) {
  const Index rows = x.extent(0);
  const Index stride = x.extent(1);
  const Index half = head_dim / 2;
  const Index positions = tokens < rows ? tokens : rows;
  Kokkos::parallel_for(
      label, Range1(space, 0, (positions + kPositions - 1) / kPositions), KOKKOS_LAMBDA(Index block) {
        const Index first = block * kPositions;
        const Index last = first + kPositions < positions ? first + kPositions : positions;
        for (Index i0 = 0; i0 < half; i0 += kPairs) {
          const Index n = half - i0 < kPairs ? half - i0 : Index(kPairs);
          double frequency[kPairs];
          for (Index i = 0; i < n; ++i) {
            frequency[i] = std::pow(theta, -2.0 * static_cast<double>(i0 + i) / static_cast<double>(head_dim));
          }
          for (Index t = first; t < last; ++t) {
            Acc<T> cosine[kPairs], sine[kPairs];
            for (Index i = 0; i < n; ++i) {
              const double angle = static_cast<double>(offset + t) * frequency[i];
              cosine[i] = static_cast<Acc<T>>(std::cos(angle));
              sine[i] = static_cast<Acc<T>>(direction * std::sin(angle));
            }
            for (Index r = t; r < rows; r += tokens) {
              for (Index h = 0; h < heads; ++h) {
                T* low = x.data() + r * stride + first_col + h * head_dim + i0;
                T* high = low + half;
                for (Index i = 0; i < n; ++i) {
                  const Acc<T> a = low[i], b = high[i];
                  low[i] = a * cosine[i] - b * sine[i];
                  high[i] = a * sine[i] + b * cosine[i];
                }
              }
            }
          }
        }
      });
}

}  // namespace

template <class T>
void rotary_forward(const Space& space, Index heads, Index head_dim, Index first_col, Index tokens, Index offset,
                    double theta, Matrix<T> x) {
  turn<T>("rotary_forward", space, heads, head_dim, first_col, tokens, offset, theta, 1.0, x);
}

template <class T>
void rotary_backward(const Space& space, Index heads, Index head_dim, Index first_col, Index tokens, Index offset,
                     double theta, Matrix<T> dx) {
  turn<T>("rotary_backward", space, heads, head_dim, first_col, tokens, offset, theta, -1.0, dx);
}

#define FOURFOLD_INSTANTIATE(T)                                                                        \
  template void rotary_forward<T>(const Space&, Index, Index, Index, Index, Index, double, Matrix<T>); \
  template void rotary_backward<T>(const Space&, Index, Index, Index, Index, Index, double, Matrix<T>);
FOURFOLD_INSTANTIATE(float)
FOURFOLD_INSTANTIATE(double)
FOURFOLD_INSTANTIATE(bf16)
#undef FOURFOLD_INSTANTIATE

}  // namespace fourfold::kernels
