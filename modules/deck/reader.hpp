// From YAML text to a checked deck. No MPI: rank 0 reads the file, every rank reads the broadcast text.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "deck/yaml_tree.hpp"

namespace fourfold {

struct DeckText {
  std::string file;  // as it was typed, for messages
  std::string text;
};

// One fault: where, which key, and a message with the rule, the legal values and the nearest of them.
struct DeckError {
  std::string file;  // or "command line: key.path=value", with line 0
  int line = 0;      // from 1; 0: no position
  int column = 0;
  std::string path;  // "model.heads"; "" where no key is meant
  std::string message;
  std::string text() const;  // "FILE:LINE:COLUMN: key.path: message"
};

struct ReadResult {
  Deck deck;                      // of use only without errors
  std::vector<DeckError> errors;  // of the text, the overrides and the cross checks, in the order of the text
  // Where keys stand that the deck gives, and the entries of its lists: "parallel.schedule_list[2]", from 1. For faults
  // that are found later.
  std::map<std::string, Place> places;
};

// The text of a file that the deck names, or why it cannot be read.
struct LoadedText {
  std::string text, problem;
};
using LoadText = std::function<LoadedText(const std::string& file)>;

// Reads the deck, puts overrides ("key.path=value", the value as YAML) in place of what it says, fills what follows
// from other keys, and checks all of it. `ranks`: how many the job has; without it what depends on them stays 0
// (parallel.dense.data, parallel.moe.replica, two of the batch) unless the deck itself settles it. `load` gets the
// machine file, if the deck names one, whose faults are then among the errors; without `load` it is not read.
ReadResult read_deck(const std::string& text, const std::string& file_name,
                     const std::vector<std::string>& overrides = {}, std::optional<std::int64_t> ranks = std::nullopt,
                     const LoadText& load = {});

// A machine file: the same rules for its keys. The machine is deck.emulate.description.
ReadResult read_machine(const std::string& text, const std::string& file_name);

// "1. FILE:LINE:COLUMN: key.path: message", one a line.
std::string numbered_list(const std::vector<DeckError>& errors);

}  // namespace fourfold
