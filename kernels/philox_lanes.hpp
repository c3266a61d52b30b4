// The high words of many draws at once: word[i] is the upper half of stream.bits(first + i), the same numbers as one by
// one. They decide every comparison with a 64-bit threshold but one in 2^32, so the rounds leave out what only the low
// words need, and the first two rounds what is equal in neighbours.
#pragma once

#include "kernels/philox.hpp"
#include "kernels/types.hpp"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace fourfold::kernels {

inline constexpr Index kDrawLanes = 8;

#if defined(__AVX2__)

namespace detail {

// Words sit in the low halves of 64-bit lanes; the high halves hold what a product left there and nobody reads. Two
// vectors go through a round together: one's chain of products would leave the core waiting (four gain no more).
class PhiloxLanes {
 public:
  static constexpr int kVectors = 2;
  static constexpr std::uint32_t kMultiplier0 = 0xD2511F53u, kMultiplier1 = 0xCD9E8D57u;

  PhiloxLanes(const RandomStream& stream, std::uint32_t high_index) {
    std::uint32_t key0[10], key1[10];
    for (int round = 0; round < 10; ++round) {
      key0[round] = static_cast<std::uint32_t>(stream.key) + static_cast<std::uint32_t>(round) * 0x9E3779B9u;
      key1[round] = static_cast<std::uint32_t>(stream.key >> 32) + static_cast<std::uint32_t>(round) * 0xBB67AE85u;
      key0_[round] = all(key0[round]);
      key1_[round] = all(key1[round]);
    }
    const auto step_low = static_cast<std::uint32_t>(stream.step);
    const auto step_high = static_cast<std::uint32_t>(stream.step >> 32);
    // Round 1: words 0 and 1 afterwards, and what word 2 is mixed with.
    const std::uint64_t product1 = std::uint64_t{kMultiplier1} * step_low;
    const std::uint32_t word0 = static_cast<std::uint32_t>(product1 >> 32) ^ high_index ^ key0[0];
    mix1_ = all(step_high ^ key1[0]);
    // Round 2: what words 0 and 2 are mixed with; word 3 afterwards, mixed with round 3's key.
    const std::uint64_t product0 = std::uint64_t{kMultiplier0} * word0;
    mix2_word0_ = all(static_cast<std::uint32_t>(product1) ^ key0[1]);
    mix2_word2_ = all(static_cast<std::uint32_t>(product0 >> 32) ^ key1[1]);
    mix3_word2_ = all(static_cast<std::uint32_t>(product0) ^ key1[2]);
  }

  // The indices' low words in, word 2 after round 9 out: the last round's product of it has the high word of the draw.
  void before_last_product(__m256i (&lanes)[kVectors]) const {
    const __m256i multiplier0 = all(kMultiplier0), multiplier1 = all(kMultiplier1);
    __m256i word0[kVectors], word1[kVectors], word2[kVectors], word3[kVectors];
    for (int v = 0; v < kVectors; ++v) {  // rounds 1, 2
      word3[v] = _mm256_mul_epu32(multiplier0, lanes[v]);
      word1[v] = _mm256_mul_epu32(multiplier1, _mm256_xor_si256(high(word3[v]), mix1_));
      word0[v] = _mm256_xor_si256(high(word1[v]), mix2_word0_);
      word2[v] = _mm256_xor_si256(word3[v], mix2_word2_);
    }
    for (int v = 0; v < kVectors; ++v) {  // round 3
      const __m256i product0 = _mm256_mul_epu32(multiplier0, word0[v]);
      const __m256i product1 = _mm256_mul_epu32(multiplier1, word2[v]);
      word0[v] = _mm256_xor_si256(high(product1), _mm256_xor_si256(word1[v], key0_[2]));
      word1[v] = product1;
      word2[v] = _mm256_xor_si256(high(product0), mix3_word2_);
      word3[v] = product0;
    }
    for (int round = 3; round < 7; ++round) {  // rounds 4 to 7
      for (int v = 0; v < kVectors; ++v) {
        const __m256i product0 = _mm256_mul_epu32(multiplier0, word0[v]);
        const __m256i product1 = _mm256_mul_epu32(multiplier1, word2[v]);
        word0[v] = _mm256_xor_si256(high(product1), _mm256_xor_si256(word1[v], key0_[round]));
        word1[v] = product1;
        word2[v] = _mm256_xor_si256(high(product0), _mm256_xor_si256(word3[v], key1_[round]));
        word3[v] = product0;
      }
    }
    for (int v = 0; v < kVectors; ++v) {  // rounds 8, 9
      word3[v] = _mm256_mul_epu32(multiplier0, word0[v]);
      const __m256i product1 = _mm256_mul_epu32(multiplier1, word2[v]);
      word0[v] = _mm256_xor_si256(high(product1), _mm256_xor_si256(word1[v], key0_[7]));
    }
    for (int v = 0; v < kVectors; ++v) {
      const __m256i product0 = _mm256_mul_epu32(multiplier0, word0[v]);
      lanes[v] = _mm256_xor_si256(high(product0), _mm256_xor_si256(word3[v], key1_[8]));
    }
  }

 private:
  static __m256i all(std::uint32_t word) { return _mm256_set1_epi64x(word); }
  static __m256i high(__m256i product) { return _mm256_srli_epi64(product, 32); }

  __m256i key0_[10], key1_[10], mix1_, mix2_word0_, mix2_word2_, mix3_word2_;
};

}  // namespace detail

// word: room for n, rounded up to a multiple of kDrawLanes.
inline void draw_high_words(const RandomStream& stream, std::uint64_t first, Index n, std::uint32_t* word) {
  const auto low = static_cast<std::uint32_t>(first);
  Index i = 0;
  if (low <= UINT32_MAX - static_cast<std::uint32_t>(n + kDrawLanes)) {  // one upper half of the index for all
    const detail::PhiloxLanes philox(stream, static_cast<std::uint32_t>(first >> 32));
    const __m256i multiplier = _mm256_set1_epi32(static_cast<int>(detail::PhiloxLanes::kMultiplier1));
    // In the order in which the even words of two vectors come together.
    const __m256i left = _mm256_setr_epi64x(0, 1, 4, 5), right = _mm256_setr_epi64x(2, 3, 6, 7);
    for (; i < n; i += kDrawLanes) {
      const __m256i begin = _mm256_set1_epi64x(low + i);
      __m256i lanes[] = {_mm256_add_epi64(begin, left), _mm256_add_epi64(begin, right)};
      philox.before_last_product(lanes);
      const __m256 word2 = _mm256_shuffle_ps(_mm256_castsi256_ps(lanes[0]), _mm256_castsi256_ps(lanes[1]), 0x88);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(word + i),
                          _mm256_mullo_epi32(multiplier, _mm256_castps_si256(word2)));
    }
  }
  for (; i < n; ++i) word[i] = stream.draw(first + static_cast<std::uint64_t>(i)).word[1];
}

#else

inline void draw_high_words(const RandomStream& stream, std::uint64_t first, Index n, std::uint32_t* word) {
  for (Index i = 0; i < n; ++i) word[i] = stream.draw(first + static_cast<std::uint64_t>(i)).word[1];
}

#endif

}  // namespace fourfold::kernels
