// Rules that span keys. They stand in the files *_rules.cpp; a test each in
// tests/deck.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "deck/reader.hpp"
#include "deck/yaml_tree.hpp"

namespace fourfold {

// Where the deck gives each key and block, and which keys have a fault already: a rule that needs one of those is left
// out, so that one mistake makes one message.
struct KeyPlaces {
  std::string file;
  std::map<std::string, Place> given;
  std::set<std::string> faulty;

  // Of the key, or of the nearest block around it that the deck has or an override gives a key of, or the start of the
  // deck.
  Place of(const std::string& path) const;
};

// `deck` after derive_sizes and derive_grid.
std::vector<DeckError> cross_check(const Deck& deck, std::optional<std::int64_t> ranks, const KeyPlaces& places);

// Rules of a machine file.
std::vector<DeckError> machine_check(const Deck& deck, const KeyPlaces& places);

}  // namespace fourfold
