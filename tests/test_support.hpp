// What every test needs: short and full lists, seeds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <random>
#include <string>
#include <vector>

namespace fourfold::test {

// tests/run.sh --full sets FOURFOLD_FULL=1: every number that an issue names, not a sample.
inline bool full() {
  const char* value = std::getenv("FOURFOLD_FULL");
  return value != nullptr && std::string(value) == "1";
}

// The sample's seed: FOURFOLD_SEED, or fixed. Printed by sample(), so that a failure can be repeated.
inline std::uint64_t seed() {
  const char* value = std::getenv("FOURFOLD_SEED");
  return value != nullptr ? std::strtoull(value, nullptr, 10) : 20261130u;
}

// All cases when full(), else `count` of them in their order, drawn with seed().
template <class Case>
std::vector<Case> sample(const std::vector<Case>& all, std::size_t count) {
  if (full() || all.size() <= count) return all;
  std::vector<Case> chosen;
  std::mt19937_64 engine(seed());
  std::sample(all.begin(), all.end(), std::back_inserter(chosen), count, engine);
  std::printf("sample of %zu of %zu cases, FOURFOLD_SEED=%llu\n", count, all.size(),
              static_cast<unsigned long long>(seed()));
  return chosen;
}

}  // namespace fourfold::test
