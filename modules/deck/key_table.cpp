// What the tables of keys answer.
#include <cmath>
#include <sstream>

#include "deck/keys.hpp"
#include "deck/names.hpp"

namespace fourfold {
namespace {

std::string number_text(double value) {
  std::ostringstream text;
  text.precision(16);
  text << value;
  return text.str();
}

}  // namespace

bool Limits::hold(double value) const {
  return (open_least ? value > least : value >= least) && (open_most ? value < most : value <= most);
}

std::string Limits::text() const {
  const bool low = std::isfinite(least);
  const bool high = std::isfinite(most);
  if (!low && !high) return "";
  if (low && high && !open_least && !open_most) return number_text(least) + " to " + number_text(most);
  if (!high) return open_least ? "above " + number_text(least) : number_text(least) + " or more";
  return (low ? number_text(least) + (open_least ? " < " : " <= ") : std::string()) + "x" +
         (open_most ? " < " : " <= ") + number_text(most);
}

std::string DeckKey::legal() const {
  const std::string range = limits.text().empty() ? "" : ", " + limits.text();
  const std::string each = limits.text().empty() ? "" : ", each " + limits.text();
  const std::string count = limits.fewest_entries == limits.most_entries ? std::to_string(limits.most_entries) + " "
                            : limits.fewest_entries > 1 ? std::to_string(limits.fewest_entries) + " or more "
                                                        : "";
  switch (type) {
    case KeyType::integer:
      return "an integer" + range;
    case KeyType::number:
      return "a number" + range;
    case KeyType::boolean:
      return "true or false";
    case KeyType::text:
      return "a text";
    case KeyType::choice:
      return "one of " + join(choices);
    case KeyType::counted_choice:
      return "one of " + join(choices) + ", {" + counted + ": " + limits.text() + "}";
    case KeyType::texts:
      return "a list of texts";
    case KeyType::integers:
      return "a list of " + count + "integers" + each;
    case KeyType::numbers:
      return "a list of " + count + "numbers" + each;
    case KeyType::grids:
      return "a list of grids such as {data: 2, row: 3}, axes data, depth, row, col" + each;
  }
  return "";
}

const DeckKey* find_key(const KeyTable& table, const std::string& path) {
  for (const DeckKey& key : table) {
    if (key.path == path) return &key;
  }
  return nullptr;
}

bool is_block(const KeyTable& table, const std::string& path) {
  return !names_in_block(table, path).empty();
}

std::vector<std::string> names_in_block(const KeyTable& table, const std::string& block) {
  const std::string prefix = block.empty() ? "" : block + ".";
  std::vector<std::string> names;
  for (const DeckKey& key : table) {
    if (key.path.compare(0, prefix.size(), prefix) != 0) continue;
    const std::string rest = key.path.substr(prefix.size());
    const std::string name = rest.substr(0, rest.find('.'));
    if (names.empty() || names.back() != name) names.push_back(name);
  }
  return names;
}

std::optional<std::string> needed_because(Need need, const Deck& deck) {
  const ModelKind kind = deck.model.kind;
  switch (need) {
    case Need::never:
      return std::nullopt;
    case Need::transformer:
      if (kind == ModelKind::transformer) return "model.kind is transformer";
      return std::nullopt;
    case Need::blocks:
    case Need::stream:
      if (kind == ModelKind::residual) return "model.kind is residual";
      return needed_because(need == Need::blocks ? Need::transformer : Need::token_model, deck);
    case Need::token_model:
      if (kind == ModelKind::transformer) return "model.kind is transformer";
      if (kind == ModelKind::embedding) return "model.kind is embedding";
      return std::nullopt;
    case Need::mlp:
      if (kind == ModelKind::mlp) return "model.kind is mlp";
      return std::nullopt;
    case Need::text_data:
      if (deck.data.kind == DataKind::files) return "data.kind is files";
      return std::nullopt;
    case Need::synthetic_data:
      if (deck.data.kind == DataKind::synthetic) return "data.kind is synthetic";
      return std::nullopt;
    case Need::moe:
      if (deck.model.moe) return "there is a model.moe";
      return std::nullopt;
    case Need::machine:
      return "every machine file says it";
  }
  return std::nullopt;
}

}  // namespace fourfold
