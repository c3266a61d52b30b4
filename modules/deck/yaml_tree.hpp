// YAML text as a plain tree with positions: the only place that knows yaml-cpp is yaml_tree.cpp.
#pragma once

#include <string>
#include <vector>

namespace fourfold {

// Where something was written: a line and column of the deck (from 1), or an override on the command line (line 0).
struct Place {
  std::string file;
  int line = 0;
  int column = 0;
};

struct YamlEntry;

struct YamlNode {
  enum class Kind { null, scalar, list, map };
  Kind kind = Kind::null;
  std::string text;     // of a scalar
  bool quoted = false;  // "..." or '...': text, never a number or a truth value
  Place place;
  std::vector<YamlNode> items;     // of a list
  std::vector<YamlEntry> entries;  // of a map, in order, duplicates kept
};

struct YamlEntry {
  YamlNode key, value;
};

struct YamlFault {
  Place place;
  std::string message;
};

// `faults` holds what is wrong with the text as YAML (syntax, tabs in the indentation, more than one document). Tabs
// are reported and then read as spaces, so that the rest of the deck is still checked; after a syntax fault `root` is
// empty.
struct YamlText {
  YamlNode root;
  bool readable = false;
  std::vector<YamlFault> faults;
};
YamlText parse_yaml(const std::string& text, const std::string& file);

}  // namespace fourfold
