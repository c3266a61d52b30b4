#include "deck/values.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <system_error>

#include "deck/aliases.hpp"
#include "deck/names.hpp"

namespace fourfold {
namespace {

std::string shown(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::null:
      return "nothing";
    case YamlNode::Kind::list:
      return "a list";
    case YamlNode::Kind::map:
      return "a block of keys";
    case YamlNode::Kind::scalar:
      break;
  }
  const std::string text = node.text.size() > 40 ? node.text.substr(0, 40) + "..." : node.text;
  return node.quoted ? "the text \"" + text + "\"" : text;
}

std::string wanted(const YamlNode& node, const DeckKey& key) {
  return shown(node) + " is not legal; wanted: " + key.legal();
}

bool is_integer_text(const std::string& text) {
  const std::size_t first = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  return text.size() > first &&
         std::all_of(text.begin() + static_cast<long>(first), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// The whole text as a finite number: digits with at most a sign, a point and an exponent.
std::optional<double> parse_number(const std::string& text) {
  const char* begin = text.data() + (!text.empty() && text[0] == '+' ? 1 : 0);
  const char* end = text.data() + text.size();
  double value = 0;
  const auto [stop, fault] = std::from_chars(begin, end, value);
  if (fault != std::errc() || stop != end || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<std::int64_t> parse_integer(const std::string& text) {
  const char* begin = text.data() + (!text.empty() && text[0] == '+' ? 1 : 0);
  const char* end = text.data() + text.size();
  std::int64_t value = 0;
  const auto [stop, fault] = std::from_chars(begin, end, value);
  if (fault != std::errc() || stop != end) return std::nullopt;
  return value;
}

std::string trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t");
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// "" if legal.
std::string outside(double value, const std::string& text, const DeckKey& key) {
  if (key.limits.hold(value)) return "";
  std::string message = text + " is out of range; legal: " + key.limits.text();
  const bool low = key.limits.open_least ? value <= key.limits.least : value < key.limits.least;
  const bool open = low ? key.limits.open_least : key.limits.open_most;
  if (!open) {
    const double nearest = low ? key.limits.least : key.limits.most;
    const bool whole = key.type == KeyType::integer || key.type == KeyType::integers ||
                       key.type == KeyType::counted_choice || key.type == KeyType::grids;
    message += "; nearest: " + (whole ? std::to_string(static_cast<std::int64_t>(nearest)) : number_literal(nearest));
  }
  return message;
}

std::string integer_fault(const YamlNode& node, const DeckKey& key) {
  if (node.kind != YamlNode::Kind::scalar) return wanted(node, key);
  if (node.quoted) {
    return shown(node) + " is not a number; wanted: " + key.legal() +
           (parse_number(trimmed(node.text)) ? "; take the quotes away" : "");
  }
  if (is_integer_text(node.text))
    return node.text + " does not fit 64 bits (at most 9223372036854775807); wanted: " + key.legal();
  if (const std::optional<double> value = parse_number(node.text)) {
    const bool whole = *value == std::floor(*value) && std::abs(*value) < 9e15;
    const auto nearest = static_cast<std::int64_t>(std::abs(*value) < 9e15 ? std::llround(*value) : 0);
    return node.text + " is not an integer; wanted: " + key.legal() +
           (whole                                           ? "; type " + std::to_string(nearest)
            : key.limits.hold(static_cast<double>(nearest)) ? "; nearest: " + std::to_string(nearest)
                                                            : "");
  }
  return wanted(node, key);
}

std::string number_fault(const YamlNode& node, const DeckKey& key) {
  if (node.kind != YamlNode::Kind::scalar) return wanted(node, key);
  if (node.quoted) {
    return shown(node) + " is not a number; wanted: " + key.legal() +
           (parse_number(trimmed(node.text)) ? "; take the quotes away" : "");
  }
  return wanted(node, key);
}

std::string boolean_fault(const YamlNode& node) {
  std::string lower = node.text;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  std::string message = shown(node) + " is not legal; wanted: true or false";
  if (node.kind != YamlNode::Kind::scalar) return message;
  if (lower == "yes" || lower == "on" || lower == "y" || lower == "1" || lower == "true")
    return message + "; type true";
  if (lower == "no" || lower == "off" || lower == "n" || lower == "0" || lower == "false") {
    return message + "; type false";
  }
  return message;
}

Conversion integer_value(const YamlNode& node, const DeckKey& key) {
  const std::optional<std::int64_t> value = parse_integer(node.text);
  if (node.kind != YamlNode::Kind::scalar || node.quoted || !value) return {std::nullopt, integer_fault(node, key)};
  const std::string fault = outside(static_cast<double>(*value), node.text, key);
  return fault.empty() ? Conversion{Value(*value), ""} : Conversion{std::nullopt, fault};
}

Conversion number_value(const YamlNode& node, const DeckKey& key) {
  const std::optional<double> value = parse_number(node.text);
  if (node.kind != YamlNode::Kind::scalar || node.quoted || !value) return {std::nullopt, number_fault(node, key)};
  const std::string fault = outside(*value, node.text, key);
  return fault.empty() ? Conversion{Value(*value), ""} : Conversion{std::nullopt, fault};
}

Conversion text_value(const YamlNode& node, const DeckKey& key) {
  if (node.kind != YamlNode::Kind::scalar || node.text.empty()) return {std::nullopt, wanted(node, key)};
  return {Value(node.text), ""};
}

Conversion choice_value(const YamlNode& node, const DeckKey& key) {
  if (node.kind == YamlNode::Kind::scalar) {
    for (const std::string& name : key.choices) {
      if (name == node.text) return {Value(name), ""};
    }
  }
  const std::string help = node.kind == YamlNode::Kind::scalar ? value_help(key.path, node.text) : "";
  if (!help.empty()) return {std::nullopt, wanted(node, key) + help};
  const std::string nearest = node.kind == YamlNode::Kind::scalar ? nearest_name(node.text, key.choices) : "";
  return {std::nullopt, wanted(node, key) + (nearest.empty() ? "" : "; nearest: " + nearest)};
}

Conversion counted_choice_value(const YamlNode& node, const DeckKey& key) {
  if (node.kind == YamlNode::Kind::map && node.entries.size() == 1 && node.entries[0].key.text == key.counted) {
    const Conversion count = integer_value(node.entries[0].value, key);
    if (!count.value) return {std::nullopt, key.counted + ": " + count.message};
    return {Value(NamedCount{key.counted, std::get<std::int64_t>(*count.value)}), ""};
  }
  const bool count_missing = node.kind == YamlNode::Kind::scalar && node.text == key.counted;
  Conversion chosen = choice_value(node, key);
  if (chosen.value) return {Value(NamedCount{std::get<std::string>(*chosen.value), 0}), ""};
  return {std::nullopt, count_missing ? wanted(node, key) + "; it takes a count" : chosen.message};
}

// {data: 2, row: 3}; axes left out are 1.
Conversion grid_value(const YamlNode& node, const DeckKey& key) {
  if (node.kind != YamlNode::Kind::map) return {std::nullopt, wanted(node, key)};
  static const std::vector<std::string> kNames = {"data", "depth", "row", "col"};
  DenseShape grid;
  int* const extents[] = {&grid.data, &grid.depth, &grid.row, &grid.col};
  std::vector<std::string> given;
  for (const auto& [name, value] : node.entries) {
    const auto found = std::find(kNames.begin(), kNames.end(), name.text);
    if (name.kind != YamlNode::Kind::scalar || found == kNames.end()) {
      const std::string nearest = nearest_name(name.text, kNames);
      return {std::nullopt, shown(name) + " is no axis" + (nearest.empty() ? "" : "; nearest: " + nearest) +
                                "; axes: " + join(kNames)};
    }
    if (std::find(given.begin(), given.end(), name.text) != given.end()) {
      return {std::nullopt, name.text + " is given twice; take one away"};
    }
    given.push_back(name.text);
    const Conversion extent = integer_value(value, key);
    if (!extent.value) return {std::nullopt, name.text + ": " + extent.message};
    *extents[found - kNames.begin()] = static_cast<int>(std::get<std::int64_t>(*extent.value));
  }
  return {Value(std::vector<DenseShape>{grid}), ""};
}

Conversion grids_value(const YamlNode& node, const DeckKey& key) {
  if (node.kind != YamlNode::Kind::list) return {std::nullopt, wanted(node, key)};
  std::vector<DenseShape> grids;
  for (std::size_t i = 0; i < node.items.size(); ++i) {
    const Conversion entry = grid_value(node.items[i], key);
    if (!entry.value) return {std::nullopt, "entry " + std::to_string(i + 1) + ": " + entry.message};
    grids.push_back(std::get<std::vector<DenseShape>>(*entry.value).front());
  }
  return {Value(grids), ""};
}

template <class Entry>
Conversion list_value(const YamlNode& node, const DeckKey& key,
                      Conversion (*entry_value)(const YamlNode&, const DeckKey&)) {
  if (node.kind != YamlNode::Kind::list) {
    if (!key.list_help.empty()) return {std::nullopt, wanted(node, key) + "; " + key.list_help};
    const bool one = key.limits.fewest_entries <= 1 && node.kind == YamlNode::Kind::scalar;
    const bool legal = one && entry_value(node, key).value.has_value();
    return {std::nullopt, wanted(node, key) + (legal ? "; type [" + node.text + "]" : "")};
  }
  if (node.items.size() < key.limits.fewest_entries || node.items.size() > key.limits.most_entries) {
    return {std::nullopt, std::to_string(node.items.size()) + " entries are not legal; wanted: " + key.legal()};
  }
  std::vector<Entry> values;
  for (std::size_t i = 0; i < node.items.size(); ++i) {
    const Conversion entry = entry_value(node.items[i], key);
    if (!entry.value) return {std::nullopt, "entry " + std::to_string(i + 1) + ": " + entry.message};
    values.push_back(std::get<Entry>(*entry.value));
  }
  return {Value(values), ""};
}

}  // namespace

Conversion convert(const YamlNode& node, const DeckKey& key) {
  if (node.kind == YamlNode::Kind::null) {
    return {std::nullopt, "has no value; wanted: " + key.legal() + "; give one or take the key away"};
  }
  switch (key.type) {
    case KeyType::integer:
      return integer_value(node, key);
    case KeyType::number:
      return number_value(node, key);
    case KeyType::boolean:
      if (node.kind == YamlNode::Kind::scalar && !node.quoted && (node.text == "true" || node.text == "false")) {
        return {Value(node.text == "true"), ""};
      }
      return {std::nullopt, boolean_fault(node)};
    case KeyType::text:
      return text_value(node, key);
    case KeyType::choice:
      return choice_value(node, key);
    case KeyType::counted_choice:
      return counted_choice_value(node, key);
    case KeyType::texts:
      return list_value<std::string>(node, key, text_value);
    case KeyType::integers:
      return list_value<std::int64_t>(node, key, integer_value);
    case KeyType::numbers:
      return list_value<double>(node, key, number_value);
    case KeyType::grids:
      return grids_value(node, key);
  }
  return {};
}

std::string number_literal(double value) {
  char digits[32];
  const auto [end, fault] = std::to_chars(digits, digits + sizeof(digits), value);
  std::string text(digits, fault == std::errc() ? end : digits);
  // YAML 1.1 readers want a point in a number with an exponent.
  const std::size_t exponent = text.find('e');
  if (text.find('.') == std::string::npos) text.insert(std::min(exponent, text.size()), ".0");
  return text;
}

}  // namespace fourfold
