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

// Words sit in the low halves of 64-bit lanes; the high halves hold what a product left there and nobody reads.
class PhiloxLanes {
 public:
  explicit PhiloxLanes(const RandomStream& stream, std::uint32_t high_index) {
    std::uint32_t key0 = static_cast<std::uint32_t>(stream.key), key1 = static_cast<std::uint32_t>(stream.key >> 32);
    for (int round = 0; round < 10; ++round) {
      key0_[round] = key0;
      key1_[round] = key1;
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
    const auto step_low = static_cast<std::uint32_t>(stream.step),
               step_high = static_cast<std::uint32_t>(stream.step >> 32);
    // Round 1: words 0 and 1 afterwards, and what word 2 is mixed with.
    const std::uint64_t product1 = std::uint64_t{kMultiplier1} * step_low;
    const std::uint32_t word0 = static_cast<std::uint32_t>(product1 >> 32) ^ high_index ^ key0_[0];
    const auto word1 = static_cast<std::uint32_t>(product1);
    mix1_ = step_high ^ key1_[0];
    // Round 2: likewise for words 0 and 2, and word 3 afterwards, mixed with round 3's key.
    const std::uint64_t product0 = std::uint64_t{kMultiplier0} * word0;
    mix2_word0_ = word1 ^ key0_[1];
    mix2_word2_ = static_cast<std::uint32_t>(product0 >> 32) ^ key1_[1];
    mix3_word2_ = static_cast<std::uint32_t>(product0) ^ key1_[2];
  }

  // The high words of indices whose low words are in the lanes of `index`, after round 9: word 2, which the last round
  // multiplies.
  __m256i before_last_product(__m256i index) const {
    const __m256i multiplier0 = all(kMultiplier0), multiplier1 = all(kMultiplier1);
    __m256i word1, word2, word3;
    __m256i product0 = _mm256_mul_epu32(multiplier0, index);  // round 1
    word2 = _mm256_xor_si256(high(product0), all(mix1_));
    word3 = product0;
    __m256i product1 = _mm256_mul_epu32(multiplier1, word2);  // round 2
    __m256i word0 = _mm256_xor_si256(high(product1), all(mix2_word0_));
    word1 = product1;
    word2 = _mm256_xor_si256(word3, all(mix2_word2_));
    product0 = _mm256_mul_epu32(multiplier0, word0);  // round 3
    product1 = _mm256_mul_epu32(multiplier1, word2);
    word0 = _mm256_xor_si256(high(product1), _mm256_xor_si256(word1, all(key0_[2])));
    word1 = product1;
    word2 = _mm256_xor_si256(high(product0), all(mix3_word2_));
    word3 = product0;
    for (int round = 3; round < 7; ++round) {  // rounds 4 to 7
      product0 = _mm256_mul_epu32(multiplier0, word0);
      product1 = _mm256_mul_epu32(multiplier1, word2);
      word0 = _mm256_xor_si256(high(product1), _mm256_xor_si256(word1, all(key0_[round])));
      word1 = product1;
      word2 = _mm256_xor_si256(high(product0), _mm256_xor_si256(word3, all(key1_[round])));
      word3 = product0;
    }
    product0 = _mm256_mul_epu32(multiplier0, word0);  // round 8
    product1 = _mm256_mul_epu32(multiplier1, word2);
    word0 = _mm256_xor_si256(high(product1), _mm256_xor_si256(word1, all(key0_[7])));
    word3 = product0;
    product0 = _mm256_mul_epu32(multiplier0, word0);  // round 9
    return _mm256_xor_si256(high(product0), _mm256_xor_si256(word3, all(key1_[8])));
  }

  static constexpr std::uint32_t kMultiplier0 = 0xD2511F53u, kMultiplier1 = 0xCD9E8D57u;

 private:
  static __m256i all(std::uint32_t word) { return _mm256_set1_epi64x(word); }
  static __m256i high(__m256i product) { return _mm256_srli_epi64(product, 32); }

  std::uint32_t key0_[10], key1_[10];
  std::uint32_t mix1_, mix2_word0_, mix2_word2_, mix3_word2_;
};

}  // namespace detail

// Writes ceil(n / kDrawLanes) kDrawLanes words.
inline void draw_high_words(const RandomStream& stream, std::uint64_t first, Index n, std::uint32_t* word) {
  const auto low = static_cast<std::uint32_t>(first);
  Index i = 0;
  if (low <= UINT32_MAX - static_cast<std::uint32_t>(n + kDrawLanes)) {  // one upper half of the index for all
    const detail::PhiloxLanes lanes(stream, static_cast<std::uint32_t>(first >> 32));
    const __m256i multiplier = _mm256_set1_epi32(static_cast<int>(detail::PhiloxLanes::kMultiplier1));
    // In the order in which the even words of two vectors come together.
    __m256i left = _mm256_add_epi64(_mm256_set1_epi64x(low), _mm256_setr_epi64x(0, 1, 4, 5));
    __m256i right = _mm256_add_epi64(_mm256_set1_epi64x(low), _mm256_setr_epi64x(2, 3, 6, 7));
    const __m256i step = _mm256_set1_epi64x(kDrawLanes);
    for (; i < n; i += kDrawLanes) {
      const __m256 a = _mm256_castsi256_ps(lanes.before_last_product(left));
      const __m256 b = _mm256_castsi256_ps(lanes.before_last_product(right));
      const __m256i word2 = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(word + i), _mm256_mullo_epi32(multiplier, word2));
      left = _mm256_add_epi64(left, step);
      right = _mm256_add_epi64(right, step);
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
