#include "data/goldfish.hpp"

namespace fourfold {

namespace {

// The finaliser of SplitMix64 (Steele et al., 2014), applied once an id: depends on the order of the ids.
std::uint64_t mixed(std::uint64_t hash, std::int32_t id) {
  hash += 0x9E3779B97F4A7C15u + static_cast<std::uint64_t>(static_cast<std::uint32_t>(id));
  hash = (hash ^ (hash >> 30)) * 0xBF58476D1CE4E5B9u;
  hash = (hash ^ (hash >> 27)) * 0x94D049BB133111EBu;
  return hash ^ (hash >> 31);
}

}  // namespace

void drop_targets(const GoldfishDeck& goldfish, Batch& batch) {
  if (goldfish.k == 0) return;
  for (std::int64_t row = 0; row < batch.rows(); ++row) {
    if (row % batch.tokens < goldfish.h - 1) continue;
    std::uint64_t hash = 0;
    for (std::int64_t i = row - goldfish.h + 1; i <= row; ++i)
      hash = mixed(hash, batch.ids[static_cast<std::size_t>(i)]);
    if (hash % static_cast<std::uint64_t>(goldfish.k) == 0) batch.targets[static_cast<std::size_t>(row)] = -1;
  }
}

}  // namespace fourfold
