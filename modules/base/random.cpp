#include "base/random.hpp"

#include <cmath>
#include <numbers>

namespace fourfold {

namespace {

// FNV-1a, 64 bits: a stable number for a purpose's name on every machine and compiler (std::hash is not).
std::uint64_t name_hash(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace

RandomStream random_stream(std::uint64_t seed, std::string_view purpose, std::uint64_t step) {
  // The key of the stream is itself a draw, from the stream whose key is the seed: near seeds share nothing.
  return RandomStream{RandomStream{seed, 0}.bits(name_hash(purpose)), step};
}

double normal(const RandomStream& stream, std::uint64_t index) {
  const kernels::Philox4 x = stream.draw(index);
  const auto unit = [](std::uint32_t low, std::uint32_t high) {
    return static_cast<double>(((std::uint64_t{high} << 32) | low) >> 11) * 0x1.0p-53;
  };
  const double radius_draw = 1.0 - unit(x.word[0], x.word[1]);  // in (0, 1]: the logarithm is finite
  const double angle = 2.0 * std::numbers::pi * unit(x.word[2], x.word[3]);
  return std::sqrt(-2.0 * std::log(radius_draw)) * std::cos(angle);
}

}  // namespace fourfold
