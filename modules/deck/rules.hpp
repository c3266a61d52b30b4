// What the rules of cross_checks.hpp share: model_rules.cpp, moe_rules.cpp, pipeline_rules.cpp and grid_rules.cpp hold
// them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "deck/cross_checks.hpp"
#include "deck/names.hpp"

namespace fourfold {

inline constexpr std::int64_t kMostGlobal = 1'000'000'000'000;  // samples of a step

struct Check {
  const Deck& deck;
  std::optional<std::int64_t> ranks;
  const KeyPlaces& places;
  std::vector<DeckError>& errors;

  // None of these keys has a fault of its own.
  bool sound(std::initializer_list<const char*> paths) const {
    return std::none_of(paths.begin(), paths.end(), [this](const char* path) { return places.faulty.count(path) > 0; });
  }
  bool given(const std::string& path) const { return places.given.count(path) > 0; }
  void add(const std::string& path, const std::string& message) const {
    const Place place = places.of(path);
    errors.push_back({place.file, place.line, place.column, path, message});
  }
};

inline std::string number(std::int64_t value) {
  return std::to_string(value);
}

inline std::string choose(const std::vector<std::int64_t>& legal, std::int64_t value) {
  if (legal.empty()) return "no value is legal";
  return "legal: " + join(legal) + "; nearest: " + number(nearest_value(value, legal));
}

// Of this many KV heads every one of `row` ranks has whole ones, or shares one with whole ranks.
inline bool kv_heads_fit(std::int64_t kv_heads, std::int64_t row) {
  return kv_heads % row == 0 || row % kv_heads == 0;
}

// Model, loss, data, learning rate, number formats.
void model_rules(const Check& check);
// Mixtures of experts, and their grid.
void moe_rules(const Check& check);
// Stages: cuts, schedules.
void pipeline_rules(const Check& check);
// Whether the model, and what the deck lists for each stage or chunk, allow so many stages.
bool stages_fit(const Check& check, std::int64_t stages);
// Stages with grids of their own (parallel.stage_grids), and the batch on them.
void stage_grid_rules(const Check& check);
// Grids, batch, sums of gradients, the emulated machine.
void grid_rules(const Check& check);

}  // namespace fourfold
