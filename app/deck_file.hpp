// Decks from the command line to a checked Deck, for every command.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "deck/reader.hpp"

namespace fourfold {

// The file's text, or the system's reason why there is none.
LoadedText load_text(const std::string& file);

// The file's text. Errors: Error (input) of all ranks with the file's name and the system's reason.
DeckText read_deck_file(const std::string& file);

// The checked deck, or nothing after the numbered list of all its faults went to stderr: the exit code is then 2.
// Every rank calls it with the same text; `speaks` on one of them only; `load` gets the machine file that the deck
// names.
std::optional<Deck> checked_deck(const DeckText& deck, const std::vector<std::string>& overrides,
                                 std::optional<std::int64_t> ranks, bool speaks, const LoadText& load);

// Whether this process is one of several copies that a launcher started, and not the first. Such a copy of a command
// that needs no MPI ends at once with 0, so that mpirun and srun show one copy of its output and the first one's exit
// code (mpirun ends the others as soon as one returns non-zero). Read from the launcher's variables, because MPI is not
// initialised.
bool is_further_copy();

}  // namespace fourfold
