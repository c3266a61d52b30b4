#include "deck/cross_checks.hpp"

#include <algorithm>

#include "deck/rules.hpp"

namespace fourfold {

std::vector<DeckError> machine_check(const Deck& deck, const KeyPlaces& places) {
  std::vector<DeckError> errors;
  const Check check{deck, std::nullopt, places, errors};
  if (!deck.emulate.description || !check.given("hosts") || !check.sound({"hosts", "nodes"})) return errors;
  const Machine& machine = *deck.emulate.description;
  if (machine.hosts.empty()) {
    check.add("hosts", "is no list of hosts as Slurm writes them; wanted: such as \"nid[001-004,007]\"");
  } else if (std::ssize(machine.hosts) != machine.nodes) {
    check.add("hosts", "names " + number(std::ssize(machine.hosts)) + " hosts, but nodes is " + number(machine.nodes) +
                           "; wanted: one a node");
  }
  std::vector<std::string> sorted = machine.hosts;
  std::sort(sorted.begin(), sorted.end());
  if (const auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end()) {
    check.add("hosts", "names " + *twice + " twice; wanted: a name of its own for each node");
  }
  return errors;
}

Place KeyPlaces::of(const std::string& path) const {
  for (std::string block = path; !block.empty();
       block = block.find('.') == std::string::npos ? "" : block.substr(0, block.rfind('.'))) {
    if (const auto found = given.find(block); found != given.end()) return found->second;
    // An override gives a key without its block.
    for (auto inside = given.lower_bound(block + "."); inside != given.end() && inside->first.starts_with(block + ".");
         ++inside) {
      if (inside->second.line == 0) return inside->second;
    }
  }
  return Place{file, 1, 1};
}

std::vector<DeckError> cross_check(const Deck& deck, std::optional<std::int64_t> ranks, const KeyPlaces& places) {
  std::vector<DeckError> errors;
  const Check check{deck, ranks, places, errors};
  model_rules(check);
  moe_rules(check);
  pipeline_rules(check);
  grid_rules(check);
  return errors;
}

}  // namespace fourfold
