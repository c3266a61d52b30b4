#include "deck/reader.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "deck/aliases.hpp"
#include "deck/cross_checks.hpp"
#include "deck/derive.hpp"
#include "deck/keys.hpp"
#include "deck/names.hpp"
#include "deck/study.hpp"
#include "deck/values.hpp"
#include "deck/yaml_tree.hpp"

namespace fourfold {
namespace {

std::string last_name(const std::string& path) {
  return path.substr(path.rfind('.') + 1);
}  // npos + 1 is 0

std::string block_of(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

std::string child(const std::string& block, const std::string& name) {
  return block.empty() ? name : block + "." + name;
}

// Where a name that is unknown in its block could have been meant to stand.
std::string unknown_key_help(const KeyTable& table, const std::string& document, const std::string& block,
                             const std::string& name) {
  const std::vector<std::string> here = names_in_block(table, block);
  const std::string where = block.empty() ? "the " + document : block;
  if (document == "deck" && block.empty() && name == "study")
    return "; a study's deck is for fourfold study and report";
  const std::size_t colon = name.find(':');
  if (colon != std::string::npos && std::find(here.begin(), here.end(), name.substr(0, colon)) != here.end()) {
    return "; write a space after the colon: " + name.substr(0, colon) + ": " + name.substr(colon + 1);
  }
  // A full path, "optimizer.lr: 1e-3", or a key of another block.
  if (find_key(table, name) != nullptr) return "; write " + block_of(name) + ": {" + last_name(name) + ": ...}";
  const std::string nearest = nearest_name(name, here);
  std::vector<std::string> elsewhere;
  for (const DeckKey& key : table) {
    const std::string key_block = block_of(key.path);
    if (last_name(key.path) == name) elsewhere.push_back(key.path);
    if (last_name(key_block) == name && std::find(elsewhere.begin(), elsewhere.end(), key_block) == elsewhere.end()) {
      elsewhere.push_back(key_block);
    }
  }
  if (!elsewhere.empty()) return "; it belongs elsewhere: " + join(elsewhere);
  if (document == "deck") {
    if (const std::string help = alias_help(child(block, name)); !help.empty()) return help;
  }
  return (nearest.empty() ? "" : "; nearest: " + child(block, nearest)) + "; keys of " + where + ": " + join(here);
}

class DeckReader {
 public:
  // `document`: what the text is, for messages. `of_study`: a block `study` is another reader's.
  DeckReader(const KeyTable& table, std::string document, const std::string& file, bool of_study = false)
      : table_(table), document_(std::move(document)), of_study_(of_study) {
    places_.file = file;
  }

  void read_text(const std::string& text) {
    const YamlText yaml = parse_yaml(text, places_.file);
    for (const YamlFault& fault : yaml.faults) add(fault.place, "", fault.message);
    readable_ = yaml.readable;
    if (yaml.readable) collect(yaml.root, "");
  }

  void read_override(const std::string& argument) {
    const std::string file = "command line: " + argument;
    const Place place{file, 0, 0};
    const std::size_t equals = argument.find('=');
    if (equals == std::string::npos || equals == 0) {
      add(place, "", "wanted: key.path=value, such as optimizer.lr=1e-3");
      return;
    }
    const std::string path = argument.substr(0, equals);
    YamlText yaml = parse_yaml(argument.substr(equals + 1), file);
    if (!yaml.readable) {
      add(place, path, yaml.faults.front().message);
      return;
    }
    move_to(yaml.root, place);
    const bool before = std::exchange(overriding_, true);
    collect_entry(path, yaml.root, place);
    overriding_ = before;
  }

  ReadResult finish(std::optional<std::int64_t> ranks, const LoadText& load) && {
    ReadResult result;
    std::vector<DeckError> machine_errors;
    if (readable_) {
      convert_values(result.deck);
      require_missing(result.deck);
      if (load) {
        RunDeck& run = result.deck.run;
        EmulateDeck& emulate = result.deck.emulate;
        load_machine("run.machine", run.machine, run.description, load, machine_errors);
        load_machine("emulate.machine", emulate.machine, emulate.description, load, machine_errors);
      }
      derive_sizes(result.deck);
      derive_grid(result.deck, ranks);
      for (DeckError& error : cross_check(result.deck, ranks, places_)) errors_.push_back(std::move(error));
    }
    sort_errors();
    result.places = std::move(places_.given);
    result.errors = std::move(errors_);
    result.errors.insert(result.errors.end(), machine_errors.begin(), machine_errors.end());
    return result;
  }

  ReadResult finish_machine() && {
    ReadResult result;
    if (readable_) {
      convert_values(result.deck);
      require_missing(result.deck);
      for (DeckError& error : machine_check(result.deck, places_)) errors_.push_back(std::move(error));
    }
    sort_errors();
    result.errors = std::move(errors_);
    return result;
  }

 private:
  struct Given {
    YamlNode value;
    bool override = false;
  };

  void sort_errors() {
    // Overrides (line 0) come last, in the order of the command line.
    std::stable_sort(errors_.begin(), errors_.end(), [](const DeckError& a, const DeckError& b) {
      return std::make_tuple(a.line == 0, a.line, a.column) < std::make_tuple(b.line == 0, b.line, b.column);
    });
  }

  // The machine file that the deck names under `path`, if any; its faults join `errors`.
  void load_machine(const std::string& path, const std::string& file, std::optional<Machine>& description,
                    const LoadText& load, std::vector<DeckError>& errors) {
    if (file == "none") return;
    const LoadedText loaded = load(file);
    if (!loaded.problem.empty()) {
      add(places_.of(path), path, "cannot read " + file + ": " + loaded.problem);
      return;
    }
    ReadResult machine = read_machine(loaded.text, file);
    if (machine.errors.empty()) description = std::move(machine.deck.emulate.description);
    errors.insert(errors.end(), machine.errors.begin(), machine.errors.end());
  }

  void add(const Place& place, const std::string& path, const std::string& message) {
    errors_.push_back({place.file, place.line, place.column, path, message});
  }

  static void move_to(YamlNode& node, const Place& place) {
    node.place = place;
    for (YamlNode& item : node.items) move_to(item, place);
    for (auto& [key, value] : node.entries) {
      move_to(key, place);
      move_to(value, place);
    }
  }

  // The keys of a block; "" is the whole deck.
  void collect(const YamlNode& node, const std::string& block) {
    if (node.kind != YamlNode::Kind::map || node.entries.empty()) {
      const std::string keys = "; keys: " + join(names_in_block(table_, block));
      if (block.empty()) {
        add(node.kind == YamlNode::Kind::null ? Place{places_.file, 1, 1} : node.place, "",
            (node.kind == YamlNode::Kind::null ? "the " + document_ + " is empty"
                                               : "a " + document_ + " is a block of keys") +
                keys);
        readable_ = false;
      } else {
        add(node.place.line > 0 && node.kind != YamlNode::Kind::null ? node.place : places_.of(block), block,
            node.kind == YamlNode::Kind::null || node.kind == YamlNode::Kind::map
                ? "is an empty block; give some of its keys or take it away" + keys
                : "is a block of keys, not a value" + keys + help_of_block(block, node));
        mark_faulty(block);
      }
      return;
    }
    std::map<std::string, int> first_line;
    for (const auto& [key, value] : node.entries) {
      if (key.kind != YamlNode::Kind::scalar) {
        add(key.place, block, "a key must be a name; keys: " + join(names_in_block(table_, block)));
        continue;
      }
      const auto [first, fresh] = first_line.emplace(key.text, key.place.line);
      if (!fresh) {
        add(key.place, child(block, key.text),
            "duplicate key" + (first->second > 0 ? ", first given on line " + std::to_string(first->second) : "") +
                "; take one away");
        continue;
      }
      if (key.text.find('.') != std::string::npos) {
        // A path is for overrides; in YAML it would be a name with a point in it.
        add(key.place, child(block, key.text), "unknown key" + unknown_key_help(table_, document_, block, key.text));
        continue;
      }
      if (block.empty() && key.text == "study" && of_study_) continue;
      collect_entry(child(block, key.text), value, key.place);
    }
  }

  void collect_entry(const std::string& path, const YamlNode& value, const Place& place) {
    if (find_key(table_, path) != nullptr) {
      Given& given = given_[path];
      if (overriding_ && given.override) {
        add(place, path, "duplicate key, given by an override before; take one away");
        return;
      }
      given = Given{value, overriding_};
      places_.given[path] = place;
      std::erase_if(places_.given, [&](const auto& entry) { return entry.first.starts_with(path + "["); });
      for (std::size_t i = 0; i < value.items.size(); ++i) {
        places_.given[path + "[" + std::to_string(i + 1) + "]"] = value.items[i].place;
      }
    } else if (is_block(table_, path)) {
      if (!overriding_ || places_.given.count(path) == 0) places_.given[path] = place;
      collect(value, path);
    } else {
      // Of an override the first wrong part of the path is reported.
      std::string wrong = path;
      while (!block_of(wrong).empty() && !is_block(table_, block_of(wrong))) wrong = block_of(wrong);
      std::string help;
      if (document_ == "deck") help = wrong == path ? names_inside(value) : alias_help(path);
      if (help.empty()) help = unknown_key_help(table_, document_, block_of(wrong), last_name(wrong));
      add(place, wrong, "unknown key" + help);
    }
  }

  // Of a block that is unknown: what other programs' names in it are here.
  static std::string names_inside(const YamlNode& block) {
    std::string help;
    for (const auto& [key, value] : block.entries) help += alias_help(key.text);
    return help;
  }

  // "precision: fp16": a value of a key inside.
  std::string help_of_block(const std::string& block, const YamlNode& node) const {
    if (node.kind != YamlNode::Kind::scalar) return "";
    for (const std::string& name : names_in_block(table_, block)) {
      const DeckKey* key = find_key(table_, child(block, name));
      if (key == nullptr) continue;
      const bool fits = std::find(key->choices.begin(), key->choices.end(), node.text) != key->choices.end();
      if (fits) return "; write " + block + ": {" + name + ": " + node.text + "}";
      if (const std::string help = value_help(key->path, node.text); !help.empty()) return help + ", under " + name;
    }
    return "";
  }

  void mark_faulty(const std::string& block) {
    for (const DeckKey& key : table_) {
      if (key.path.compare(0, block.size() + 1, block + ".") == 0) places_.faulty.insert(key.path);
    }
  }

  void convert_values(Deck& deck) {
    for (const DeckKey& key : table_) {
      const auto given = given_.find(key.path);
      if (given == given_.end()) continue;
      const Conversion conversion = convert(given->second.value, key);
      if (conversion.value) {
        key.set(deck, *conversion.value);
      } else {
        add(places_.given[key.path], key.path, conversion.message);
        places_.faulty.insert(key.path);
      }
    }
    if (given_.count("run.folder") == 0) deck.run.folder = "runs/" + deck.run.name;
    if (given_.count("parallel.dense.data") == 0) deck.parallel.dense.data = 0;
    if (given_.count("parallel.stages") == 0 && !deck.parallel.stage_grids.empty()) {
      deck.parallel.stages = static_cast<int>(deck.parallel.stage_grids.size());
    }
    if (deck.optimizer.kind == OptimizerKind::lamb) {  // You et al. 2020
      if (given_.count("optimizer.betas") == 0) deck.optimizer.beta2 = 0.999;
      if (given_.count("optimizer.eps") == 0) deck.optimizer.eps = 1e-6;
    }
  }

  void require_missing(const Deck& deck) {
    for (const DeckKey& key : table_) {
      if (key.need == Need::never) continue;
      const char* kind = key.path.compare(0, 5, "data.") == 0 ? "data.kind" : "model.kind";
      if (places_.faulty.count(kind) > 0) {
        // Whether it is needed is not known: rules that use it must not look.
        if (given_.count(key.path) == 0) places_.faulty.insert(key.path);
        continue;
      }
      const std::optional<std::string> because = needed_because(key.need, deck);
      if (!because || given_.count(key.path) > 0) continue;
      const bool reported = !places_.faulty.insert(key.path).second;
      if (reported) continue;
      add(places_.of(key.path), key.path,
          "is missing, and has no default (" + *because + "); wanted: " + key.legal() + "; such as " +
              last_name(key.path) + ": " + key.example);
    }
  }

  const KeyTable& table_;
  std::string document_;
  bool of_study_;
  KeyPlaces places_;
  std::map<std::string, Given> given_;
  std::vector<DeckError> errors_;
  bool readable_ = true;
  bool overriding_ = false;
};

}  // namespace

std::string DeckError::text() const {
  std::string where = file;
  if (line > 0) where += ":" + std::to_string(line) + ":" + std::to_string(column);
  return where + ": " + (path.empty() ? "" : path + ": ") + message;
}

std::string numbered_list(const std::vector<DeckError>& errors) {
  std::string list;
  for (std::size_t i = 0; i < errors.size(); ++i) list += std::to_string(i + 1) + ". " + errors[i].text() + "\n";
  return list;
}

ReadResult read_deck(const std::string& text, const std::string& file_name, const std::vector<std::string>& overrides,
                     std::optional<std::int64_t> ranks, const LoadText& load) {
  DeckReader reader(deck_keys(), "deck", file_name);
  reader.read_text(text);
  for (const std::string& argument : overrides) reader.read_override(argument);
  return std::move(reader).finish(ranks, load);
}

ReadResult read_deck_of_study(const std::string& text, const std::string& file_name,
                              const std::vector<std::string>& overrides, std::optional<std::int64_t> ranks,
                              const LoadText& load) {
  DeckReader reader(deck_keys(), "deck", file_name, true);
  reader.read_text(text);
  for (const std::string& argument : overrides) reader.read_override(argument);
  return std::move(reader).finish(ranks, load);
}

ReadResult read_machine(const std::string& text, const std::string& file_name) {
  DeckReader reader(machine_keys(), "machine file", file_name);
  reader.read_text(text);
  return std::move(reader).finish_machine();
}

}  // namespace fourfold
