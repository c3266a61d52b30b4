#include "deck/writer.hpp"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <variant>
#include <vector>

#include "deck/keys.hpp"
#include "deck/names.hpp"
#include "deck/values.hpp"

namespace fourfold {
namespace {

constexpr std::size_t kCommentColumn = 34;

// Plain where every YAML reader takes it for a text, else quoted.
std::string text_literal(const std::string& text) {
  const bool safe_first = std::isalpha(static_cast<unsigned char>(text[0])) || text[0] == '/' || text[0] == '_';
  const bool safe = std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-' || c == '.' || c == '/';
  });
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::vector<std::string> words = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"};
  if (safe_first && safe && std::find(words.begin(), words.end(), lower) == words.end()) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += std::string("\\") + c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\x%02x", static_cast<unsigned>(c));
      quoted += escape;
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

struct Literal {
  bool plain_text = false;  // a choice is written as it is
  std::string operator()(std::int64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const { return number_literal(value); }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(const std::string& value) const { return plain_text ? value : text_literal(value); }
  std::string operator()(const NamedCount& value) const {
    return value.count > 0 ? "{" + value.name + ": " + std::to_string(value.count) + "}" : value.name;
  }
  std::string operator()(const DenseShape& grid) const {
    const auto axis = [this](const char* name, int extent) { return name + (*this)(std::int64_t{extent}); };
    return axis("{data: ", grid.data) + axis(", depth: ", grid.depth) + axis(", row: ", grid.row) +
           axis(", col: ", grid.col) + "}";
  }
  template <class Entry>
  std::string operator()(const std::vector<Entry>& values) const {
    std::vector<std::string> entries;
    for (const Entry& value : values) entries.push_back((*this)(value));
    return "[" + join(entries, entries.size()) + "]";
  }
};

// Writes lines `name: value` and opens the blocks that a path needs.
class BlockWriter {
 public:
  void add(const std::string& path, const std::string& value, const std::string& comment) {
    std::vector<std::string> names;
    std::size_t begin = 0;
    for (std::size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', begin)) {
      names.push_back(path.substr(begin, dot - begin));
      begin = dot + 1;
    }
    std::size_t same = 0;
    while (same < names.size() && same < open_.size() && names[same] == open_[same]) ++same;
    for (std::size_t level = same; level < names.size(); ++level) {
      if (level == 0 && !text_.empty()) text_ += "\n";
      text_ += std::string(2 * level, ' ') + names[level] + ":\n";
    }
    open_ = names;
    std::string line = std::string(2 * names.size(), ' ') + path.substr(begin) + ": " + value;
    if (!comment.empty()) {
      line.resize(std::max(line.size() + 2, kCommentColumn), ' ');
      line += "# " + comment;
    }
    text_ += line + "\n";
  }
  const std::string& text() const { return text_; }

 private:
  std::vector<std::string> open_;
  std::string text_;
};

std::string literal(const Value& value, const DeckKey& key) {
  return std::visit(Literal{key.type == KeyType::choice}, value);
}

std::string all_keys_comment(const DeckKey& key) {
  std::string comment = key.comment;
  if (key.type == KeyType::choice) comment += "; one of " + join(key.choices);
  if (key.type == KeyType::counted_choice) {
    comment += "; " + key.legal();
  } else if (!key.limits.text().empty())
    comment += "; " + key.limits.text();
  if (!key.derived.empty()) comment += "; default: " + key.derived;
  if (key.need != Need::never) comment += "; no default, example";
  return comment;
}

}  // namespace

std::string write_deck(const Deck& deck) {
  BlockWriter writer;
  for (const DeckKey& key : deck_keys()) {
    if (const std::optional<Value> value = key.get(deck)) writer.add(key.path, literal(*value, key), "");
  }
  return writer.text();
}

std::string write_all_keys() {
  const Deck defaults;
  BlockWriter writer;
  for (const DeckKey& key : deck_keys()) {
    writer.add(key.path, key.fixed_default() ? literal(*key.get(defaults), key) : key.example, all_keys_comment(key));
  }
  return "# Every key of a deck with its default, or an example where it has none.\n"
         "# Written by `fourfold check --all-keys`; a test holds it equal to the program.\n\n" +
         writer.text();
}

}  // namespace fourfold
