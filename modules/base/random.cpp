#include "base/random.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numbers>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace fourfold {

namespace {

// FNV-1a, 64 bits: a stable number for a purpose's name on every machine and compiler (std::hash is not).
std::uint64_t name_hash(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

// Draws are made in blocks of lanes, in loops that compilers turn into vector code (of 16 lanes they would unroll them
// instead): 8 ns a draw on one core with AVX2, six times as fast as the library's functions.
constexpr int kLanes = 32;
template <class T>
using Lanes = std::array<T, kLanes>;

// 1/n + z (1/m + z (...)) for n, m, ... (Spelt out for the compiler: a loop inside a loop is not made vector code.)
template <int n, int... Rest>
inline double reciprocal_series(double z) {
  if constexpr (sizeof...(Rest) == 0) {
    return 1.0 / n;
  } else {
    return 1.0 / n + z * reciprocal_series<Rest...>(z);
  }
}
// 1 - z / (n (n - 1)) (1 - z / (m (m - 1)) (...))
template <int n, int... Rest>
inline double alternating_series(double z) {
  constexpr double kFactor = 1.0 / (n * (n - 1.0));
  if constexpr (sizeof...(Rest) == 0) {
    return 1.0 - z * kFactor;
  } else {
    return 1.0 - z * kFactor * alternating_series<Rest...>(z);
  }
}

// log(x) for x in (0, 1], to the last place or two. x = 2^e m with m in [sqrt(1/2), sqrt(2)); log m = 2 artanh(s) with
// s = (m - 1) / (m + 1), |s| < 0.172: eleven terms.
inline double log_of_unit(double x) {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  constexpr std::uint64_t kRootHalf = 0x3FE6A09E667F3BCDu;
  const auto exponent = static_cast<std::int32_t>((bits - kRootHalf) >> 32) >> 20;  // of small numbers alone: see below
  const double m =
      std::bit_cast<double>(bits - (static_cast<std::uint64_t>(static_cast<std::int64_t>(exponent)) << 52));
  const double s = (m - 1.0) / (m + 1.0);
  const double z = s * s;
  const double sum = reciprocal_series<3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23>(z);
  constexpr double kLog2High = 0x1.62e42fefa38p-1,
                   kLog2Low = 0x1.ef35793c7673p-45;  // the first exact times an exponent
  const double e = exponent;
  return e * kLog2High + (2.0 * s + (2.0 * s * z * sum + e * kLog2Low));
}

// cos(2 pi x) for x in [0, 1), to the last place or two: Taylor series on an eighth of a turn.
inline double cos_of_turns(double x) {
  const double quarter = std::nearbyint(4.0 * x);  // 0 to 4
  const double angle = 2.0 * std::numbers::pi * (x - 0.25 * quarter);
  const double z = angle * angle;
  const double cosine = alternating_series<2, 4, 6, 8, 10, 12, 14, 16>(z);
  const double sine = angle * alternating_series<3, 5, 7, 9, 11, 13, 15, 17>(z);
  // cos(a + q pi/2) = cos a, -sin a, -cos a, sin a
  const auto q = static_cast<std::int32_t>(quarter);
  const double value = (q & 1) != 0 ? sine : cosine;
  return ((q + 1) & 2) != 0 ? -value : value;
}

// Draws `first` to first + kLanes - 1 of the unit interval, 53 bits each: of words 0 and 1, and of words 2 and 3.
#if defined(__AVX2__)

// Words sit in the low halves of 64-bit lanes; the high halves hold what a product left there and nobody reads.
__m256i low_half(__m256i lanes) {
  return _mm256_and_si256(lanes, _mm256_set1_epi64x(0xFFFFFFFF));
}
__m256d to_double(__m256i integers) {  // below 2^52
  const __m256i place = _mm256_set1_epi64x(0x4330000000000000);
  return _mm256_sub_pd(_mm256_castsi256_pd(_mm256_or_si256(integers, place)), _mm256_set1_pd(0x1.0p52));
}
__m256d fraction(__m256i low, __m256i high) {  // exact
  const __m256d upper = _mm256_mul_pd(to_double(low_half(high)), _mm256_set1_pd(0x1.0p-32));
  const __m256d lower = _mm256_mul_pd(to_double(_mm256_srli_epi64(low_half(low), 11)), _mm256_set1_pd(0x1.0p-53));
  return _mm256_add_pd(upper, lower);
}

void fractions(const RandomStream& stream, std::uint64_t first, Lanes<double>& front, Lanes<double>& back) {
  constexpr int kVectors = 2;  // one vector's chain of products would leave the core waiting
  const __m256i multiplier0 = _mm256_set1_epi64x(0xD2511F53);
  const __m256i multiplier1 = _mm256_set1_epi64x(0xCD9E8D57);
  for (int begin = 0; begin < kLanes; begin += 4 * kVectors) {
    __m256i word0[kVectors], word1[kVectors], word2[kVectors], word3[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const auto index = static_cast<std::int64_t>(first + static_cast<std::uint64_t>(begin + 4 * v));
      word0[v] = _mm256_add_epi64(_mm256_set1_epi64x(index), _mm256_setr_epi64x(0, 1, 2, 3));
      word1[v] = _mm256_srli_epi64(word0[v], 32);
      word2[v] = _mm256_set1_epi64x(static_cast<std::int64_t>(stream.step));
      word3[v] = _mm256_srli_epi64(word2[v], 32);
    }
    auto key0 = static_cast<std::uint32_t>(stream.key), key1 = static_cast<std::uint32_t>(stream.key >> 32);
    for (int round = 0; round < kernels::kPhiloxRounds; ++round) {
      for (int v = 0; v < kVectors; ++v) {
        const __m256i product0 = _mm256_mul_epu32(multiplier0, word0[v]);
        const __m256i product1 = _mm256_mul_epu32(multiplier1, word2[v]);
        const __m256i mix0 = _mm256_xor_si256(word1[v], _mm256_set1_epi64x(key0));
        const __m256i mix2 = _mm256_xor_si256(word3[v], _mm256_set1_epi64x(key1));
        word0[v] = _mm256_xor_si256(_mm256_srli_epi64(product1, 32), mix0);
        word1[v] = product1;
        word2[v] = _mm256_xor_si256(_mm256_srli_epi64(product0, 32), mix2);
        word3[v] = product0;
      }
      kernels::philox_next_key(key0, key1);
    }
    for (int v = 0; v < kVectors; ++v) {
      _mm256_storeu_pd(front.data() + begin + 4 * v, fraction(word0[v], word1[v]));
      _mm256_storeu_pd(back.data() + begin + 4 * v, fraction(word2[v], word3[v]));
    }
  }
}

#else

// Exact, and without conversions from 64-bit integers, which few vector units have.
inline double fraction(std::uint32_t low, std::uint32_t high) {
  const auto number = [](std::uint32_t word) {
    return static_cast<double>(static_cast<std::int32_t>(word ^ 0x80000000u)) + 0x1.0p31;
  };
  return number(high) * 0x1.0p-32 + static_cast<double>(static_cast<std::int32_t>(low >> 11)) * 0x1.0p-53;
}

void fractions(const RandomStream& stream, std::uint64_t first, Lanes<double>& front, Lanes<double>& back) {
  Lanes<std::uint32_t> w0, w1, w2, w3;
  for (int i = 0; i < kLanes; ++i) {
    const auto l = static_cast<std::size_t>(i);
    const std::uint64_t index = first + l;
    w0[l] = static_cast<std::uint32_t>(index);
    w1[l] = static_cast<std::uint32_t>(index >> 32);
    w2[l] = static_cast<std::uint32_t>(stream.step);
    w3[l] = static_cast<std::uint32_t>(stream.step >> 32);
  }
  auto key0 = static_cast<std::uint32_t>(stream.key), key1 = static_cast<std::uint32_t>(stream.key >> 32);
  for (int round = 0; round < kernels::kPhiloxRounds; ++round) {
    for (std::size_t l = 0; l < kLanes; ++l) {
      const kernels::Philox4 next = kernels::philox_round({{w0[l], w1[l], w2[l], w3[l]}}, key0, key1);
      w0[l] = next.word[0];
      w1[l] = next.word[1];
      w2[l] = next.word[2];
      w3[l] = next.word[3];
    }
    kernels::philox_next_key(key0, key1);
  }
  for (std::size_t l = 0; l < kLanes; ++l) {
    front[l] = fraction(w0[l], w1[l]);
    back[l] = fraction(w2[l], w3[l]);
  }
}

#endif

void normal_lanes(const RandomStream& stream, std::uint64_t first, Lanes<double>& values) {
  Lanes<double> front, back;
  fractions(stream, first, front, back);
  // 1 - x is in (0, 1]: the logarithm is finite.
  for (std::size_t l = 0; l < kLanes; ++l) values[l] = -2.0 * log_of_unit(1.0 - front[l]);
  for (std::size_t l = 0; l < kLanes; ++l) values[l] = std::sqrt(values[l]) * cos_of_turns(back[l]);
}

}  // namespace

RandomStream random_stream(std::uint64_t seed, std::string_view purpose, std::uint64_t step) {
  // The key of the stream is itself a draw, from the stream whose key is the seed: near seeds share nothing.
  return RandomStream{RandomStream{seed, 0}.bits(name_hash(purpose)), step};
}

void fill_normal(const RandomStream& stream, std::uint64_t first, std::span<double> values) {
  Lanes<double> block;
  for (std::size_t begin = 0; begin < values.size(); begin += kLanes) {
    normal_lanes(stream, first + begin, block);
    const std::size_t count = std::min<std::size_t>(kLanes, values.size() - begin);
    std::copy_n(block.begin(), count, values.begin() + static_cast<std::ptrdiff_t>(begin));
  }
}

double normal(const RandomStream& stream, std::uint64_t index) {
  double value = 0;
  fill_normal(stream, index, {&value, 1});
  return value;
}

}  // namespace fourfold
