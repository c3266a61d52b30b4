// Strategies: named lists of overrides as functions of the number of ranks, for one global batch. What each imitates is
// in the README's table.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "deck/study.hpp"

namespace fourfold::study {

using Override = std::pair<std::string, std::string>;  // key, value as YAML

StrategyNames strategy_names();

// All keys that strategies set, so that none is left of the deck's own layout. `global`: samples of a step.
std::vector<Override> strategy_overrides(const std::string& name, int ranks, std::int64_t global);

}  // namespace fourfold::study
