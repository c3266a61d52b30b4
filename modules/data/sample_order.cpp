#include "data/sample_order.hpp"

#include <bit>
#include <utility>

#include "base/error.hpp"

namespace fourfold {

namespace {

constexpr int kRounds = 8;

std::uint64_t feistel(const RandomStream& stream, int half_bits, std::uint64_t value) {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  std::uint64_t left = value >> half_bits;
  std::uint64_t right = value & mask;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    left ^= stream.bits((round << 32) | right) & mask;
    std::swap(left, right);
  }
  return (left << half_bits) | right;
}

}  // namespace

SampleOrder::SampleOrder(std::uint64_t seed, std::int64_t samples, std::size_t corpus)
    : seed_(seed), stream_(corpus == 0 ? "data/order" : "data/order/" + std::to_string(corpus)), samples_(samples) {
  FOURFOLD_ASSERT(samples >= 1 && samples <= (std::int64_t{1} << 62), "an epoch holds at least one sample");
  const int bits = std::bit_width(static_cast<std::uint64_t>(samples - 1));
  half_bits_ = bits < 2 ? 1 : (bits + 1) / 2;
}

std::int64_t SampleOrder::at(std::int64_t k) const {
  FOURFOLD_ASSERT(k >= 0, "samples count from 0");
  const RandomStream stream = random_stream(seed_, stream_, static_cast<std::uint64_t>(k / samples_));
  std::uint64_t value = static_cast<std::uint64_t>(k % samples_);
  do {
    value = feistel(stream, half_bits_, value);
  } while (value >= static_cast<std::uint64_t>(samples_));
  return static_cast<std::int64_t>(value);
}

}  // namespace fourfold
