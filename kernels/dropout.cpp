#include "kernels/dropout.hpp"

#include <cmath>

#include "kernels/philox_lanes.hpp"
#include "kernels/stream.hpp"

namespace fourfold::kernels {

namespace {

// Keeps element j of a run if the draw of `first` + j is at least p: uniform(i) >= p in integers is that the 53 bits of
// the draw are at least p 2^53, that is, all 64 at least `threshold`.
struct Mask {
  RandomStream stream;
  std::uint64_t threshold;

  KOKKOS_FORCEINLINE_FUNCTION bool keeps(std::uint64_t index) const { return stream.bits(index) >= threshold; }
};

// Draws made in one go: their words stay in the first-level cache.
constexpr Index kBlock = 256;

// One run of n elements on a host: the words of a block of draws, then the block.
template <class T>
void mask_run(const Mask& mask, bool around, Index n, std::uint64_t first, Acc<T> factor, const T* in, T* out) {
  static_assert(kBlock % kDrawLanes == 0);
  alignas(64) std::uint32_t word[kBlock];
  alignas(64) T block[kBlock];
  const auto limit = static_cast<std::uint32_t>(mask.threshold >> 32);
  for (Index j0 = 0; j0 < n; j0 += kBlock) {
    const Index count = std::min(kBlock, n - j0);
    const std::uint64_t index = first + static_cast<std::uint64_t>(j0);
    draw_high_words(mask.stream, index, count, word);
    std::uint32_t ties = 0;
    for (Index j = 0; j < count; ++j) {
      const T kept = static_cast<T>(in[j0 + j] * factor);
      ties |= word[j] == limit ? 1u : 0u;
      block[j] = word[j] > limit ? kept : T(0);
    }
    if (ties != 0) {
      for (Index j = 0; j < count; ++j) {
        if (word[j] != limit) continue;
        block[j] = mask.keeps(index + static_cast<std::uint64_t>(j)) ? static_cast<T>(in[j0 + j] * factor) : T(0);
      }
    }
    copy_run(around, count, block, out + j0);
  }
}

template <class T>
void apply_mask(const char* label, const Space& space, Matrix<const T> x, RandomStream stream, double p,
                const GlobalRows& rows, Matrix<T> y) {
  const Index width = x.extent(1);
  const GlobalRows at = rows;
  const Mask mask{stream, static_cast<std::uint64_t>(std::ceil(p * 0x1.0p53)) << 11};
  const Acc<T> factor = static_cast<Acc<T>>(1.0 / (1.0 - p));
  const bool around = goes_around_caches<T>(y.data(), x.size(), x.data());
  Kokkos::parallel_for(
      label, Range1(space, 0, x.extent(0)), KOKKOS_LAMBDA(Index r) {
        const T* in = x.data() + r * width;
        T* out = y.data() + r * width;
        const Index sample = at.first_sample + r / at.tokens;
        const Index position = at.first_token + r % at.tokens;
        const auto first = static_cast<std::uint64_t>((sample * at.sequence + position) * at.width + at.first_col);
        // nvcc captures nothing first inside an if constexpr.
        const Mask draw = mask;
        const Acc<T> times = factor;
        const bool past_caches = around;
        if constexpr (kStreamsOnHost) {
          mask_run(draw, past_caches, width, first, times, in, out);
        } else {
          for (Index j = 0; j < width; ++j) {
            out[j] = draw.keeps(first + static_cast<std::uint64_t>(j)) ? static_cast<T>(in[j] * times) : T(0);
          }
        }
      });
  finish_stores_around_caches(around);
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
template void dropout_forward(const Space&, Matrix<const bf16>, RandomStream, double, const GlobalRows&, Matrix<bf16>);

}  // namespace fourfold::kernels
