// A machine as numbers: nodes, ranks on each, two classes of links, and what a rank computes. Plain structs, integers
// only, so that modelled times are exact and the same everywhere. The deck module reads them from
// inputs/machines/*.yaml.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fourfold {

using Picoseconds = std::int64_t;

// inside: both ends on one node. between: on two nodes.
enum class LinkClass : int { inside, between };
inline constexpr int kLinkClasses = 2;

inline constexpr std::int64_t kUnlimited = INT64_MAX;  // a bandwidth that makes messages of any size free

struct Link {
  Picoseconds latency = 0;     // alpha: time of flight of a message
  std::int64_t bandwidth = 1;  // 1 / beta: bytes per second that one rank sends
  bool operator==(const Link&) const = default;
};

// What a product's operands are.
enum class NumberType : int { fp64, fp32, bf16 };

struct Machine {
  std::string name = "machine";
  std::int64_t nodes = 1, ranks_per_node = 1;
  std::vector<std::string> hosts;  // names of the nodes, or none
  Link inside, between;
  std::int64_t fp64 = 1, fp32 = 1, bf16 = 1;  // FLOP/s of one rank's matrix products
  std::int64_t memory_bandwidth = 1;          // bytes/s of one rank

  std::int64_t ranks() const { return nodes * ranks_per_node; }
  // Nodes are filled one after the other.
  std::int64_t node_of(std::int64_t rank) const { return rank / ranks_per_node; }
  const Link& link(LinkClass of) const { return of == LinkClass::inside ? inside : between; }
  std::int64_t flops(NumberType type) const;
  bool operator==(const Machine&) const = default;
};

// So many ranks whose messages take no time.
Machine free_machine(std::int64_t ranks);

// amount / rate, rounded up to the picosecond: the largest 64-bit integer where it does not fit. amount >= 0, rate > 0.
Picoseconds time_at_rate(std::int64_t amount, std::int64_t rate);

// The sum; the largest number where that does not fit.
Picoseconds saturating_add(Picoseconds a, Picoseconds b);

// How long `bytes` hold a channel of this link: n beta.
Picoseconds transfer_time(const Link& link, std::int64_t bytes);

// A kernel takes the longer of its arithmetic and its traffic with memory (roofline), each rounded up.
Picoseconds kernel_time(const Machine& machine, NumberType type, std::int64_t flops, std::int64_t bytes);

// A collective of `ranks` ranks over links of one class, on a ring: ring_bytes are those of the largest part;
// `steps` messages follow one another: 2 (ranks - 1) for an all-reduce, else ranks - 1.
Picoseconds collective_time(const Link& link, std::int64_t ring_bytes, std::int64_t steps);

}  // namespace fourfold
