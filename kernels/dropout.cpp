#include "kernels/dropout.hpp"

#include <cmath>

namespace fourfold::kernels {

namespace {

template <class T>
void apply_mask(const char* label, const Space& space, Matrix<const T> x, RandomStream stream, double p,
                const GlobalRows& rows, Matrix<T> y) {
  const Index width = x.extent(1);
  const GlobalRows at = rows;
  // uniform(i) >= p, in integers: the 53 bits of the draw are at least p 2^53.
  const std::uint64_t threshold = static_cast<std::uint64_t>(std::ceil(p * 0x1.0p53));
  const T factor = static_cast<T>(1.0 / (1.0 - p));
  Kokkos::parallel_for(
      label, Range1(space, 0, x.extent(0)), KOKKOS_LAMBDA(Index r) {
        const T* in = x.data() + r * width;
        T* out = y.data() + r * width;
        const Index sample = at.first_sample + r / at.tokens;
        const Index position = at.first_token + r % at.tokens;
        const Index first = (sample * at.sequence + position) * at.width + at.first_col;
        for (Index j = 0; j < width; ++j) {
          const bool keep = (stream.bits(static_cast<std::uint64_t>(first + j)) >> 11) >= threshold;
          out[j] = keep ? in[j] * factor : T(0);
        }
      });
}

}  // namespace

template <class T>
void dropout_forward(const Space& space, Matrix<const T> x, RandomStream stream, double p, const GlobalRows& rows,
                     Matrix<T> y) {
  if (p > 0.0) {
    apply_mask<T>("dropout_forward", space, x, stream, p, rows, y);
  } else if (x.data() != y.data()) {
    Kokkos::deep_copy(space, y, x);
  }
}

template void dropout_forward(const Space&, Matrix<const float>, RandomStream, double, const GlobalRows&,
                              Matrix<float>);
template void dropout_forward(const Space&, Matrix<const double>, RandomStream, double, const GlobalRows&,
                              Matrix<double>);

}  // namespace fourfold::kernels
