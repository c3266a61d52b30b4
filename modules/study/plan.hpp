// From a study's deck to its trials.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "deck/study.hpp"
#include "study/presets.hpp"
#include "trials/table.hpp"

namespace fourfold::study {

struct Trial {
  std::string key;
  int ranks = 1;
  std::string strategy;  // "deck": the deck's own layout
  std::int64_t seed = 0, repeat = 1;
  std::vector<Override> swept;
  std::vector<Override> overrides;  // all that makes it of the deck, swept ones and the strategy's included
  std::optional<Deck> deck;         // resolved for its ranks; nothing where the deck refuses them
  std::string problem;              // why

  // "zero1, optimizer.lr 1e-3": without ranks, seed and repeat.
  std::string point() const;
  std::string label() const;  // all of it
  // Layout and batch of the resolved deck: "data 2 x row 2, 1f1b on 2 stages".
  std::string layout() const;
};

struct Plan {
  StudyDeck study;
  std::vector<Trial> trials;  // ranks ascending as given, then strategies, swept values, seeds, repeats
};

// A resolved deck, or why there is none: what the program does with a deck before it trains.
using Resolve = std::function<std::pair<std::optional<Deck>, std::string>(const std::vector<std::string>& overrides,
                                                                          std::int64_t ranks)>;

// `launched`: ranks of this launch, for a study that names none.
Plan make_plan(const StudyRead& read, std::int64_t launched, const Resolve& resolve);

// A part of a study: conditions "ranks=4", "strategy=ddp", "seed=1", "repeat=2", all of which hold. Errors (input, all
// ranks): another condition, or one that no trial meets.
std::vector<Trial> select(const Plan& plan, const std::vector<std::string>& only);

// study.json in the study's folder: what `fourfold report` needs to know of a study beside its rows, as JSON.
std::string plan_json(const Plan& plan, const std::string& deck_text, const std::string& command);

struct ListedTrial {
  std::string key, label, strategy, point;
  std::int64_t ranks = 1;
};
struct ListedStudy {
  std::string name, kind, scaling, deck, command;
  std::int64_t attempts = 3;
  std::vector<std::string> swept;  // keys
  std::vector<ListedTrial> trials;
};
// Errors (input, one rank): no such file, or another one.
ListedStudy read_plan(const std::string& file);

// "done", "failed: why", "died 3 times", "stopped", "missing".
std::string state_text(const trials::TrialState* state, std::int64_t attempts);

}  // namespace fourfold::study
