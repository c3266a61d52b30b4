// The one table of the deck's keys. From it come reading (reader.hpp), writing (writer.hpp) and inputs/all_keys.yaml.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "deck/deck.hpp"

namespace fourfold {

// counted_choice: a choice, or {NAME: count} for the one name that takes a count. grids: blocks of the dense axes,
// those left out 1.
enum class KeyType { integer, number, boolean, text, choice, counted_choice, texts, integers, numbers, grids };

struct NamedCount {
  std::string name;
  std::int64_t count = 0;  // 0: a name without one
  bool operator==(const NamedCount&) const = default;
};

using Value = std::variant<std::int64_t, double, bool, std::string, std::vector<std::string>, std::vector<std::int64_t>,
                           std::vector<double>, NamedCount, std::vector<DenseShape>>;

// What an integer or number (or each entry of a list) may be; ends belong to it unless they are open.
struct Limits {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool open_least = false;
  bool open_most = false;
  std::size_t fewest_entries = 0;  // of a list
  std::size_t most_entries = std::numeric_limits<std::size_t>::max();
  bool hold(double value) const;
  std::string text() const;  // "1 to 64", "0 or more", "0 <= x < 1"; "" if everything is legal
};

// When a key without a default must be given.
enum class Need { never, transformer, blocks, stream, token_model, mlp, text_data, synthetic_data, moe, machine };

struct DeckKey {
  std::string path;  // "model.ffn.kind"
  KeyType type;
  std::string comment;  // one line: what it does, and its unit
  Limits limits;
  std::vector<std::string> choices;
  std::string counted;  // of a counted_choice: the name that takes a count, within the limits
  Need need = Need::never;
  std::string list_help;  // what to type where a list is wanted and another value stands; "": [value]
  // Without a fixed default: how the value follows from others where it is left out ("" if it must be given), and an
  // example for all_keys.yaml, as YAML. With a fixed default the default is the one of the struct.
  std::string derived;
  std::string example;
  std::function<void(Deck&, const Value&)> set;
  // Nothing where the deck holds no value: an optional block is absent, or a value is not known yet.
  std::function<std::optional<Value>(const Deck&)> get;

  bool fixed_default() const { return example.empty(); }
  std::string legal() const;  // for messages: type and legal values
};

using KeyTable = std::vector<DeckKey>;
const KeyTable& deck_keys();
KeyTable moe_keys();             // those of model.moe, a part of them
const KeyTable& machine_keys();  // of machine files; they fill emulate.description
const DeckKey* find_key(const KeyTable& table, const std::string& path);  // nullptr: no such key
bool is_block(const KeyTable& table, const std::string& path);            // "model.ffn": some keys start with it
// The names that may stand in a block, in the order of the table; "" is the whole deck.
std::vector<std::string> names_in_block(const KeyTable& table, const std::string& block);

// Whether `deck` must give a key of this need, and why ("model.kind is transformer"); nothing if it need not.
std::optional<std::string> needed_because(Need need, const Deck& deck);

}  // namespace fourfold
