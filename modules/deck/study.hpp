// The `study:` block beside a deck: which runs of it to make. `fourfold study` reads it, the other commands refuse it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "deck/reader.hpp"

namespace fourfold {

// sweep: every combination. scaling: over rank counts, with efficiencies. strategies: named layouts of one global
// batch.
enum class StudyKind { sweep, scaling, strategies };
// strong: the deck's global batch at every rank count; weak: at the first one, and more with the ranks.
enum class Scaling { strong, weak };

struct SweptKey {
  std::string path;                 // a key of the deck
  std::vector<std::string> values;  // as YAML
};

struct StudyDeck {
  std::string name = "study";
  std::string folder;  // default: runs/<name>
  StudyKind kind = StudyKind::sweep;
  Scaling scaling = Scaling::strong;
  std::vector<SweptKey> sweep;
  std::vector<std::int64_t> ranks;  // default: the ranks of the launch
  std::vector<std::string> strategies;
  std::vector<std::int64_t> seeds;  // default: run.seed
  std::int64_t repeats = 1;
  std::optional<double> target_loss;
  std::int64_t attempts = 3;
};

struct StudyRead {
  StudyDeck study;
  Deck deck;                           // the deck beside it, without a number of ranks
  std::vector<std::string> overrides;  // those of the deck, not of the study
  std::vector<DeckError> errors;       // of both, in the order of the text
};

// What a study may ask for by name, and the keys that any of these names sets.
struct StrategyNames {
  std::vector<std::string> names, keys;
};

// `overrides` may name keys of the study too: "study.repeats=5".
StudyRead read_study(const std::string& text, const std::string& file_name, const std::vector<std::string>& overrides,
                     const StrategyNames& strategies, const LoadText& load = {});

// As read_deck(), but for the block `study`, which is left alone.
ReadResult read_deck_of_study(const std::string& text, const std::string& file_name,
                              const std::vector<std::string>& overrides, std::optional<std::int64_t> ranks,
                              const LoadText& load);

// The keys of the block with their defaults and a comment each, for people.
std::string write_study_keys();

}  // namespace fourfold
