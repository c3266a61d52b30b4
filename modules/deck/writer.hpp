// Decks as YAML text: the resolved deck, and the list of every key.
#pragma once

#include <string>

#include "deck/deck.hpp"

namespace fourfold {

// Every key that has a value, in the order of the table, one a line; read_deck of it gives the same structs.
std::string write_deck(const Deck& deck);

// inputs/all_keys.yaml: every key with its default, or an example where there is none, and one comment. A legal deck.
std::string write_all_keys();

}  // namespace fourfold
