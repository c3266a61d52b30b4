// Host side of the counter-based random numbers (kernels/philox.hpp): streams are named by a purpose.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/philox.hpp"

namespace fourfold {

using kernels::RandomStream;

// The stream of (seed, purpose, step). `purpose` is a stable name ("init/blocks.0.attention.q.weight", "data/order",
// "dropout/3"); equal arguments give equal draws on any rank, grid and restart.
RandomStream random_stream(std::uint64_t seed, std::string_view purpose, std::uint64_t step = 0);

// Standard normal draws number `first` and on (Box-Muller, one Philox block each; double precision). A draw is the same
// whatever run of them it is made in.
void fill_normal(const RandomStream& stream, std::uint64_t first, std::span<double> values);
// Draw number `index` alone.
double normal(const RandomStream& stream, std::uint64_t index);

}  // namespace fourfold
