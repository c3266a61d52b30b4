// bfloat16: the upper half of a float. Weights and activations are stored in it; arithmetic is in float, into which it
// converts without a word. Rounds to nearest, ties to even; a NaN stays one, what is too large becomes infinite.
#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>

namespace fourfold::kernels {

struct bf16 {
  std::uint16_t bits;

  bf16() = default;
  KOKKOS_FORCEINLINE_FUNCTION bf16(float x) : bits(rounded(x)) {}  // NOLINT(*-explicit-*)
  KOKKOS_FORCEINLINE_FUNCTION explicit bf16(double x) : bf16(static_cast<float>(x)) {}
  KOKKOS_FORCEINLINE_FUNCTION explicit bf16(int x) : bf16(static_cast<float>(x)) {}
  KOKKOS_FORCEINLINE_FUNCTION operator float() const {  // NOLINT(*-explicit-*)
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16);
  }

 private:
  KOKKOS_FORCEINLINE_FUNCTION static std::uint16_t rounded(float x) {
    const auto word = __builtin_bit_cast(std::uint32_t, x);
    const std::uint32_t nearest = (word + 0x7fffu + (word >> 16 & 1u)) >> 16;
    const bool nan = (word & 0x7fffffffu) > 0x7f800000u;
    return static_cast<std::uint16_t>(nan ? word >> 16 | 0x40u : nearest);
  }
};

}  // namespace fourfold::kernels
