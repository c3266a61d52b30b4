// What the deck may ask for and training cannot do yet. A line goes when its module comes.
#include <cstdint>

#include "deck/reader.hpp"

namespace fourfold {

std::vector<DeckError> not_built_yet(const Deck& deck, const std::string& file_name) {
  std::vector<DeckError> errors;
  const auto refuse = [&](bool asked, const char* path, const std::string& instead) {
    if (asked) errors.push_back({file_name, 0, 0, path, "is not built yet; " + instead});
  };
  refuse(deck.model.moe.has_value(), "model.moe", "take the block away");
  const bool expert_grid =
      deck.parallel.moe && (deck.parallel.moe->expert > 1 || deck.parallel.moe->row > 1 || deck.parallel.moe->col > 1);
  refuse(expert_grid, "parallel.moe", "take the block away");
  return errors;
}

}  // namespace fourfold
