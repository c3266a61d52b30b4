// A scalar or list of the YAML tree as a typed value, strictly: no guess, and a message that says what to type.
#pragma once

#include <optional>
#include <string>

#include "deck/keys.hpp"
#include "deck/yaml_tree.hpp"

namespace fourfold {

struct Conversion {
  std::optional<Value> value;
  std::string message;  // what is wrong, if there is no value
};
Conversion convert(const YamlNode& node, const DeckKey& key);

// The shortest text that reads back to the same double, always with a point or an exponent.
std::string number_literal(double value);

}  // namespace fourfold
