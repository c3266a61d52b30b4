#include "deck/study.hpp"

#include <algorithm>
#include <set>
#include <tuple>

#include "deck/key_line.hpp"
#include "deck/names.hpp"
#include "deck/values.hpp"

namespace fourfold {
namespace {

constexpr double kMostPoints = 1e6;

// A key of the block: `row` says what is legal and how it reads, `set` where it goes.
struct StudyKey {
  DeckKey row;
  std::string standard;  // the default, as YAML
  std::function<void(StudyDeck&, const Value&)> set;
};

DeckKey row(const char* name, KeyType type, const char* comment) {
  DeckKey key;
  key.path = name;
  key.type = type;
  key.comment = comment;
  return key;
}

std::vector<StudyKey> make_keys() {
  std::vector<StudyKey> keys;
  const auto add = [&](DeckKey key, const char* standard, std::function<void(StudyDeck&, const Value&)> set) {
    keys.push_back({std::move(key), standard, std::move(set)});
  };
  add(row("name", KeyType::text, "of the study, for tables and plots"), "study",
      [](StudyDeck& study, const Value& value) { study.name = std::get<std::string>(value); });
  add(row("folder", KeyType::text, "trials, tables and plots go here; default: runs/<study.name>"), "runs/study",
      [](StudyDeck& study, const Value& value) { study.folder = std::get<std::string>(value); });
  DeckKey kind = row("kind", KeyType::choice, "what the report shows");
  kind.choices = {"sweep", "scaling", "strategies"};
  add(kind, "sweep", [names = kind.choices](StudyDeck& study, const Value& value) {
    const auto at = std::find(names.begin(), names.end(), std::get<std::string>(value));
    study.kind = static_cast<StudyKind>(at - names.begin());
  });
  DeckKey scaling = row("scaling", KeyType::choice, "strong: one global batch; weak: it grows with the ranks");
  scaling.choices = {"strong", "weak"};
  add(scaling, "strong", [](StudyDeck& study, const Value& value) {
    study.scaling = std::get<std::string>(value) == "weak" ? Scaling::weak : Scaling::strong;
  });
  DeckKey ranks = row("ranks", KeyType::integers, "rank counts; default: the ranks of the launch");
  ranks.limits = between(1, 1 << 30);
  add(ranks, "[1, 2, 4]",
      [](StudyDeck& study, const Value& value) { study.ranks = std::get<std::vector<std::int64_t>>(value); });
  add(row("strategies", KeyType::texts, "named layouts; default: the deck's own"), "[ddp, zero1]",
      [](StudyDeck& study, const Value& value) { study.strategies = std::get<std::vector<std::string>>(value); });
  DeckKey seeds = row("seeds", KeyType::integers, "values of run.seed; default: the deck's");
  seeds.limits = at_least(0);
  add(seeds, "[1234]",
      [](StudyDeck& study, const Value& value) { study.seeds = std::get<std::vector<std::int64_t>>(value); });
  DeckKey repeats = row("repeats", KeyType::integer, "runs of each point");
  repeats.limits = between(1, kMostPoints);
  add(repeats, "1", [](StudyDeck& study, const Value& value) { study.repeats = std::get<std::int64_t>(value); });
  DeckKey target = row("target_loss", KeyType::number, "training loss whose first step is reported; default: none");
  add(target, "2.0", [](StudyDeck& study, const Value& value) { study.target_loss = std::get<double>(value); });
  DeckKey attempts = row("attempts", KeyType::integer, "a trial in which the job died so often is listed as failed");
  attempts.limits = between(1, 1000);
  add(attempts, "3", [](StudyDeck& study, const Value& value) { study.attempts = std::get<std::int64_t>(value); });
  return keys;
}

const std::vector<StudyKey>& study_keys() {
  static const std::vector<StudyKey> keys = make_keys();
  return keys;
}

std::vector<std::string> key_names() {
  std::vector<std::string> names;
  for (const StudyKey& key : study_keys()) names.push_back(key.row.path);
  names.emplace_back("sweep");
  return names;
}

std::string text_of(const YamlNode& node) {
  std::string text;
  switch (node.kind) {
    case YamlNode::Kind::null:
      return "null";
    case YamlNode::Kind::scalar:
      return node.quoted ? "\"" + node.text + "\"" : node.text;
    case YamlNode::Kind::list:
      for (const YamlNode& item : node.items) text += (text.empty() ? "" : ", ") + text_of(item);
      return "[" + text + "]";
    case YamlNode::Kind::map:
      for (const auto& [key, value] : node.entries) {
        text += (text.empty() ? "" : ", ") + text_of(key) + ": " + text_of(value);
      }
      return "{" + text + "}";
  }
  return text;
}

void move_to(YamlNode& node, const Place& place) {
  node.place = place;
  for (YamlNode& item : node.items) move_to(item, place);
  for (auto& [key, value] : node.entries) {
    move_to(key, place);
    move_to(value, place);
  }
}

class StudyReader {
 public:
  StudyReader(std::string file, const StrategyNames& strategies) : file_(std::move(file)), strategies_(strategies) {}

  void read_text(const std::string& text) {
    const YamlText yaml = parse_yaml(text, file_);
    if (!yaml.readable || yaml.root.kind != YamlNode::Kind::map) return;  // the deck's reader says so
    for (const auto& [key, value] : yaml.root.entries) {
      if (key.text != "study") continue;
      place_ = key.place;
      if (value.kind != YamlNode::Kind::map || value.entries.empty()) {
        add(key.place, "study", "is a block of keys; keys: " + join(key_names()));
        return;
      }
      for (const auto& [name, entry] : value.entries) take(name.text, entry, name.place);
    }
    if (place_.line == 0) {
      add({file_, 1, 1}, "study", "is missing; beside the deck's blocks stands study: {ranks: [1, 2, 4]}");
    }
  }

  void read_override(const std::string& argument) {
    const std::size_t equals = argument.find('=');
    const std::string file = "command line: " + argument;
    YamlText yaml = parse_yaml(argument.substr(equals + 1), file);
    const std::string name = argument.substr(6, equals - 6);  // behind "study."
    if (!yaml.readable) {
      add({file, 0, 0}, "study." + name, yaml.faults.front().message);
      return;
    }
    move_to(yaml.root, {file, 0, 0});
    nodes_.erase(name);
    take(name, yaml.root, {file, 0, 0});
  }

  StudyRead finish(Deck deck, std::vector<DeckError> errors) && {
    StudyRead result;
    result.deck = std::move(deck);
    for (const StudyKey& key : study_keys()) {
      const auto given = nodes_.find(key.row.path);
      if (given == nodes_.end()) continue;
      const Conversion conversion = convert(given->second.first, key.row);
      if (conversion.value) {
        key.set(result.study, *conversion.value);
      } else {
        add(given->second.second, "study." + key.row.path, conversion.message);
      }
    }
    if (const auto sweep = nodes_.find("sweep"); sweep != nodes_.end()) read_sweep(sweep->second.first, result.study);
    if (result.study.folder.empty()) result.study.folder = "runs/" + result.study.name;
    if (result.study.seeds.empty()) result.study.seeds = {static_cast<std::int64_t>(result.deck.run.seed)};
    check(result.study, result.deck);
    result.errors = std::move(errors);
    result.errors.insert(result.errors.end(), errors_.begin(), errors_.end());
    std::stable_sort(result.errors.begin(), result.errors.end(), [](const DeckError& a, const DeckError& b) {
      return std::make_tuple(a.line == 0, a.line, a.column) < std::make_tuple(b.line == 0, b.line, b.column);
    });
    return result;
  }

 private:
  void add(const Place& place, const std::string& path, const std::string& message) {
    errors_.push_back({place.file, place.line, place.column, path, message});
  }

  Place of(const std::string& name) const {
    const auto given = nodes_.find(name);
    return given == nodes_.end() ? place_ : given->second.second;
  }

  void take(const std::string& name, const YamlNode& value, const Place& place) {
    const std::vector<std::string> names = key_names();
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      const std::string nearest = nearest_name(name, names);
      add(place, "study." + name,
          "unknown key" + (nearest.empty() ? std::string() : "; nearest: study." + nearest) +
              "; keys of study: " + join(names));
      return;
    }
    if (!nodes_.emplace(name, std::make_pair(value, place)).second) {
      add(place, "study." + name, "duplicate key; take one away");
    }
  }

  // {optimizer.lr: [1e-3, 3e-3], optimizer: {kind: [adamw, lamb]}}: keys of the deck, by path or in blocks.
  void read_sweep(const YamlNode& node, StudyDeck& study) {
    if (node.kind != YamlNode::Kind::map || node.entries.empty()) {
      add(of("sweep"), "study.sweep", "is a block of the deck's keys with lists, such as {optimizer.lr: [1e-3, 3e-3]}");
      return;
    }
    read_swept(node, "", study);
  }

  void read_swept(const YamlNode& node, const std::string& block, StudyDeck& study) {
    for (const auto& [name, values] : node.entries) {
      const std::string path = block.empty() ? name.text : block + "." + name.text;
      if (is_block(deck_keys(), path) && values.kind == YamlNode::Kind::map) {
        read_swept(values, path, study);
      } else {
        read_swept_key(path, values, name.place, study);
      }
    }
  }

  void read_swept_key(const std::string& path, const YamlNode& values, const Place& place, StudyDeck& study) {
    const std::string where = "study.sweep." + path;
    const DeckKey* key = find_key(deck_keys(), path);
    if (key == nullptr) {
      std::vector<std::string> paths;
      for (const DeckKey& each : deck_keys()) paths.push_back(each.path);
      const std::string nearest = nearest_name(path, paths);
      add(place, where, "is no key of a deck" + (nearest.empty() ? std::string() : "; nearest: " + nearest));
      return;
    }
    static const std::map<std::string, std::string> kFixed = {
        {"run.name", "trials get their names from the study"},
        {"run.folder", "each trial gets a folder of its own"},
        {"run.seed", "write study.seeds"},
        {"comm.shared_memory", "it holds for the whole launch; set it in the deck"}};
    if (const auto fixed = kFixed.find(path); fixed != kFixed.end()) {
      add(place, where, "cannot be swept: " + fixed->second);
      return;
    }
    if (values.kind != YamlNode::Kind::list || values.items.empty()) {
      add(place, where, "wanted: a list of values, each " + key->legal());
      return;
    }
    const bool twice = std::any_of(study.sweep.begin(), study.sweep.end(), [&](auto& one) { return one.path == path; });
    if (twice) {
      add(place, where, "duplicate key; take one away");
      return;
    }
    SweptKey swept{path, {}};
    for (const YamlNode& value : values.items) {
      const Conversion conversion = convert(value, *key);
      if (!conversion.value) add(value.place, where, conversion.message);
      swept.values.push_back(text_of(value));
    }
    places_[path] = place;
    study.sweep.push_back(std::move(swept));
  }

  template <class Entry>
  void refuse_twice(const std::string& name, const std::vector<Entry>& list) {
    std::set<Entry> seen;
    for (const Entry& entry : list) {
      if (!seen.insert(entry).second) add(of(name), "study." + name, "has an entry twice; take one away");
    }
  }

  // Rules that span keys.
  void check(const StudyDeck& study, const Deck& deck) {
    refuse_twice("ranks", study.ranks);
    refuse_twice("seeds", study.seeds);
    refuse_twice("strategies", study.strategies);
    for (const SweptKey& swept : study.sweep) {
      if (std::set<std::string>(swept.values.begin(), swept.values.end()).size() < swept.values.size()) {
        add(places_[swept.path], "study.sweep." + swept.path, "has an entry twice; take one away");
      }
    }
    for (const std::string& name : study.strategies) {
      if (std::find(strategies_.names.begin(), strategies_.names.end(), name) != strategies_.names.end()) continue;
      const std::string nearest = nearest_name(name, strategies_.names);
      add(of("strategies"), "study.strategies",
          name + " is no strategy" + (nearest.empty() ? std::string() : "; nearest: " + nearest) +
              "; there are: " + join(strategies_.names));
    }
    if (study.kind == StudyKind::strategies && study.strategies.empty()) {
      add(of("kind"), "study.kind", "strategies wants study.strategies; there are: " + join(strategies_.names));
    }
    if (study.kind == StudyKind::scaling && study.ranks.size() < 2) {
      add(of("kind"), "study.kind", "scaling wants two rank counts or more in study.ranks");
    }
    if (study.kind != StudyKind::scaling && nodes_.contains("scaling")) {
      add(of("scaling"), "study.scaling", "is of study.kind: scaling; set that, or take it away");
    }
    const bool weak = study.kind == StudyKind::scaling && study.scaling == Scaling::weak;
    for (const SweptKey& swept : study.sweep) {
      const bool named =
          std::find(strategies_.keys.begin(), strategies_.keys.end(), swept.path) != strategies_.keys.end();
      if (named && !study.strategies.empty()) {
        add(places_[swept.path], "study.sweep." + swept.path, "is set by study.strategies; take one of the two away");
      }
      if (weak && swept.path == "batch.global") {
        add(places_[swept.path], "study.sweep.batch.global", "grows with the ranks in weak scaling; take it away");
      }
    }
    if ((weak || !study.strategies.empty()) && deck.batch.global == 0 && errors_.empty()) {
      add(place_, "batch.global",
          "is missing; a study of strategies, or of weak scaling, starts from one global batch");
    }
  }

  std::string file_;
  const StrategyNames& strategies_;
  Place place_;
  std::map<std::string, std::pair<YamlNode, Place>> nodes_;  // by key: what it says, and where
  std::map<std::string, Place> places_;                      // of swept keys
  std::vector<DeckError> errors_;
};

}  // namespace

StudyRead read_study(const std::string& text, const std::string& file_name, const std::vector<std::string>& overrides,
                     const StrategyNames& strategies, const LoadText& load) {
  StudyReader reader(file_name, strategies);
  reader.read_text(text);
  std::vector<std::string> of_deck;
  for (const std::string& argument : overrides) {
    if (argument.starts_with("study.") && argument.find('=') != std::string::npos) {
      reader.read_override(argument);
    } else {
      of_deck.push_back(argument);
    }
  }
  ReadResult base = read_deck_of_study(text, file_name, of_deck, std::nullopt, load);
  StudyRead result = std::move(reader).finish(std::move(base.deck), std::move(base.errors));
  result.overrides = std::move(of_deck);
  return result;
}

std::string write_study_keys() {
  std::string text = "study:\n";
  for (const StudyKey& key : study_keys()) {
    std::string line = "  " + key.row.path + ": " + key.standard;
    line.resize(std::max<std::size_t>(line.size() + 2, 34), ' ');
    text += line + "# " + key.row.comment + "; " + key.row.legal() + "\n";
  }
  return text + "  sweep: {optimizer.lr: [1e-3]}   # any key of the deck, with a list of values\n";
}

}  // namespace fourfold
