#include "study/presets.hpp"

#include <algorithm>
#include <array>

#include "base/error.hpp"
#include "deck/names.hpp"

namespace fourfold::study {

namespace {

// What a strategy says; the data axis is what the ranks leave.
struct Layout {
  int depth = 1, row = 1, col = 1, stages = 1, expert = 1;
  bool sequence_shard = false;
  std::string shard = "none", schedule = "1f1b";
};

// The ranks' prime factors, the largest first, each for the axis that has least so far (of equal ones the first).
template <std::size_t axes>
std::array<int, axes> spread(int ranks) {
  std::vector<int> primes;
  for (int p = 2; ranks > 1; ++p) {
    for (; ranks % p == 0; ranks /= p) primes.push_back(p);
  }
  std::array<int, axes> extents;
  extents.fill(1);
  for (auto prime = primes.rbegin(); prime != primes.rend(); ++prime) {
    *std::min_element(extents.begin(), extents.end()) *= *prime;
  }
  return extents;
}

Layout pipeline(int ranks, const char* schedule) {
  Layout layout;
  layout.stages = ranks;
  layout.schedule = schedule;
  return layout;
}

struct Strategy {
  const char* name;
  Layout (*layout)(int ranks);
};

constexpr Strategy kStrategies[] = {{"ddp", [](int) { return Layout{}; }},
                                    {"zero1",
                                     [](int) {
                                       Layout layout;
                                       layout.shard = "data";
                                       return layout;
                                     }},
                                    {"fsdp",
                                     [](int ranks) {
                                       Layout layout;
                                       layout.depth = ranks;
                                       return layout;
                                     }},
                                    {"hsdp",
                                     [](int ranks) {
                                       Layout layout;
                                       layout.depth = spread<2>(ranks)[0];
                                       return layout;
                                     }},
                                    {"megatron-1d",
                                     [](int ranks) {
                                       Layout layout;
                                       layout.row = ranks;
                                       return layout;
                                     }},
                                    {"megatron-sp",
                                     [](int ranks) {
                                       Layout layout;
                                       layout.row = ranks;
                                       layout.sequence_shard = true;
                                       return layout;
                                     }},
                                    {"axonn-3d",
                                     [](int ranks) {
                                       Layout layout;
                                       const auto extents = spread<3>(ranks);
                                       layout.row = extents[0];
                                       layout.col = extents[1];
                                       layout.depth = extents[2];
                                       return layout;
                                     }},
                                    {"expert-parallel",
                                     [](int ranks) {
                                       Layout layout;
                                       layout.expert = ranks;
                                       return layout;
                                     }},
                                    {"gpipe", [](int ranks) { return pipeline(ranks, "gpipe"); }},
                                    {"1f1b", [](int ranks) { return pipeline(ranks, "1f1b"); }},
                                    {"zero-bubble", [](int ranks) { return pipeline(ranks, "zero_bubble"); }},
                                    {"ptd", [](int ranks) {
                                       const auto extents = spread<3>(ranks);
                                       Layout layout = pipeline(extents[1], "1f1b");
                                       layout.row = extents[0];
                                       return layout;
                                     }}};

// Micro-batches of a step: four a stage or the next number above that cuts the samples of a coordinate, so that
// pipelines are full for most of the time; one where there is one stage.
std::int64_t micro_batches(std::int64_t samples, int stages) {
  if (stages == 1) return 1;
  const std::int64_t wanted = std::min<std::int64_t>(samples, std::int64_t{4} * stages);
  for (const std::int64_t count : divisors(samples)) {
    if (count >= wanted) return count;
  }
  return samples;
}

}  // namespace

StrategyNames strategy_names() {
  StrategyNames known;
  for (const Strategy& strategy : kStrategies) known.names.emplace_back(strategy.name);
  for (const auto& [key, value] : strategy_overrides("ddp", 1, 1)) known.keys.push_back(key);
  return known;
}

std::vector<Override> strategy_overrides(const std::string& name, int ranks, std::int64_t global) {
  for (const Strategy& strategy : kStrategies) {
    if (name != strategy.name) continue;
    const Layout layout = strategy.layout(ranks);
    // Where a batch does not divide the deck's rules say so.
    const std::int64_t coordinates = std::max(1, ranks / (layout.row * layout.col * layout.stages));
    const std::int64_t samples = std::max<std::int64_t>(1, global / coordinates);
    const std::int64_t micros = micro_batches(samples, layout.stages);
    return {{"parallel.dense.data", std::to_string(coordinates / layout.depth)},
            {"parallel.dense.depth", std::to_string(layout.depth)},
            {"parallel.dense.row", std::to_string(layout.row)},
            {"parallel.dense.col", std::to_string(layout.col)},
            {"parallel.moe.expert", std::to_string(layout.expert)},
            {"parallel.moe.row", "1"},
            {"parallel.moe.col", "1"},
            {"parallel.stages", std::to_string(layout.stages)},
            {"parallel.stage_grids", "[]"},
            {"parallel.schedule", layout.schedule},
            {"parallel.sequence_shard", layout.sequence_shard ? "true" : "false"},
            {"optimizer.shard", layout.shard},
            {"batch.micro", std::to_string(samples / micros)},
            {"batch.micro_batches", std::to_string(micros)}};
  }
  fail_all(ExitCode::input, name + " is no strategy; there are: " + join(strategy_names().names));
}

}  // namespace fourfold::study
