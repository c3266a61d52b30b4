// Counter-based random numbers: every draw is a function of (seed, purpose, index, step), never of a rank or of what
// was drawn before. Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
//
// This header needs nothing but the standard library, so that host code (modules/base/random.hpp) and kernels share it.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define FOURFOLD_FUNCTION __host__ __device__ inline
#else
#define FOURFOLD_FUNCTION inline
#endif

namespace fourfold::kernels {

struct Philox4 {
  std::uint32_t word[4];
};

inline constexpr int kPhiloxRounds = 10;

FOURFOLD_FUNCTION Philox4 philox_round(Philox4 counter, std::uint32_t key0, std::uint32_t key1) {
  const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * counter.word[0];
  const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * counter.word[2];
  return Philox4{
      {static_cast<std::uint32_t>(product1 >> 32) ^ counter.word[1] ^ key0, static_cast<std::uint32_t>(product1),
       static_cast<std::uint32_t>(product0 >> 32) ^ counter.word[3] ^ key1, static_cast<std::uint32_t>(product0)}};
}
// Between rounds.
FOURFOLD_FUNCTION void philox_next_key(std::uint32_t& key0, std::uint32_t& key1) {
  key0 += 0x9E3779B9u;
  key1 += 0xBB67AE85u;
}

// All rounds on a 128-bit counter with a 64-bit key.
FOURFOLD_FUNCTION Philox4 philox4x32(Philox4 counter, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    counter = philox_round(counter, key0, key1);
    philox_next_key(key0, key1);
  }
  return counter;
}

// A stream of draws: `key` mixes seed and purpose (see stream_key), `step` separates steps, `index` is a global index.
struct RandomStream {
  std::uint64_t key = 0;
  std::uint64_t step = 0;

  FOURFOLD_FUNCTION Philox4 draw(std::uint64_t index) const {
    return philox4x32(Philox4{{static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                               static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(step >> 32)}},
                      static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32));
  }
  FOURFOLD_FUNCTION std::uint64_t bits(std::uint64_t index) const {
    const Philox4 x = draw(index);
    return (std::uint64_t{x.word[1]} << 32) | x.word[0];
  }
  // Uniform in [0, 1), 53 bits.
  FOURFOLD_FUNCTION double uniform(std::uint64_t index) const {
    return static_cast<double>(bits(index) >> 11) * 0x1.0p-53;
  }
};

}  // namespace fourfold::kernels
