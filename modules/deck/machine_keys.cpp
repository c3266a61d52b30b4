// The keys of machine files.
#include <cmath>

#include "deck/key_line.hpp"
#include "machine/hosts.hpp"

namespace fourfold {
namespace {

Machine& machine_of(Deck& deck) {
  if (!deck.emulate.description) deck.emulate.description.emplace();
  return *deck.emulate.description;
}

// Seconds, or units per second, kept as integers. Machine files are read, never written.
template <class Access>
Line quantity(std::string path, const Limits& limits, double unit, std::string comment, std::string example,
              Access access) {
  return std::move(Line(std::move(path), KeyType::number, std::move(comment))
                       .limits(limits)
                       .needed(Need::machine, std::move(example))
                       .stored(
                           [access, unit](Deck& deck, const Value& value) {
                             *access(machine_of(deck)) = std::llround(std::get<double>(value) * unit);
                           },
                           {}));
}

KeyTable make_machine_table() {
  KeyTable table;
  const auto add = [&table](Line line) { table.push_back(std::move(line).key()); };
  const Limits latency = between(0, 1);
  const Limits rate = between(1, 1e18);
  add(Line("name", KeyType::text, "of the machine, for logs")
          .needed(Need::machine, "two_level")
          .stored([](Deck& d, const Value& value) { machine_of(d).name = std::get<std::string>(value); }, {}));
  const auto count = [&add](const char* path, double most, const char* comment, const char* example, auto access) {
    add(Line(path, KeyType::integer, comment)
            .limits(between(1, most))
            .needed(Need::machine, example)
            .stored([access](Deck& d, const Value& value) { *access(machine_of(d)) = std::get<std::int64_t>(value); },
                    {}));
  };
  count("nodes", kMostExtent, "of the machine", "2", [](Machine& m) { return &m.nodes; });
  count("ranks_per_node", 65536, "devices of a node, a rank each", "4", [](Machine& m) { return &m.ranks_per_node; });
  add(Line("hosts", KeyType::text, "names of the nodes, as Slurm writes them")
          .derived("none", "nid[001-002]")
          .stored(
              [](Deck& d, const Value& value) {
                machine_of(d).hosts =
                    expand_host_list(std::get<std::string>(value)).value_or(std::vector<std::string>());
              },
              {}));
  add(quantity("links.inside.latency", latency, 1e12, "seconds that a message inside a node flies", "2.0e-6",
               [](Machine& m) { return &m.inside.latency; }));
  add(quantity("links.inside.bandwidth", rate, 1, "bytes per second that one rank sends inside its node", "1.0e11",
               [](Machine& m) { return &m.inside.bandwidth; }));
  add(quantity("links.between.latency", latency, 1e12, "seconds that a message between nodes flies", "5.0e-6",
               [](Machine& m) { return &m.between.latency; }));
  add(quantity("links.between.bandwidth", rate, 1, "bytes per second that one rank sends to other nodes", "2.5e10",
               [](Machine& m) { return &m.between.bandwidth; }));
  add(quantity("rank.fp64", rate, 1, "FLOP/s of a rank's matrix products in fp64", "1.0e13",
               [](Machine& m) { return &m.fp64; }));
  add(quantity("rank.fp32", rate, 1, "FLOP/s of a rank's matrix products in fp32", "2.0e13",
               [](Machine& m) { return &m.fp32; }));
  add(quantity("rank.bf16", rate, 1, "FLOP/s of a rank's matrix products in bf16", "2.0e14",
               [](Machine& m) { return &m.bf16; }));
  add(quantity("rank.memory_bandwidth", rate, 1, "bytes per second between a rank and its memory", "1.5e12",
               [](Machine& m) { return &m.memory_bandwidth; }));
  return table;
}

}  // namespace

const KeyTable& machine_keys() {
  static const KeyTable table = make_machine_table();
  return table;
}

}  // namespace fourfold
