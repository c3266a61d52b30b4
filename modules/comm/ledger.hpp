// The communication ledger: every call of modules/comm records here what it was given and what it is worth on a ring,
// so that tests compare a step's sums with the closed forms in the matrix sizes and the grid, by integer equality.
//
// Ring-equivalent elements sent by this rank, R ranks in the group (exact part sizes where parts do not divide):
//   all_gather, reduce_scatter   total - own part
//   all_reduce (sum, max)        2 (total - own part), own part = part(total, R, rank) by quotient and remainder
//   all_to_all                   elements sent to other ranks
//   broadcast                    total on every rank but the last of the ring that starts at the root, which sends none
//   send                         total;   receive, barrier: 0
// Messages that this rank sends on that ring: all_reduce 2 (R - 1); all_gather, reduce_scatter, barrier R - 1;
// all_to_all one to each rank that gets elements; broadcast and send 1 (0 on the ring's last); receive 0.
// A group of one rank moves nothing and records nothing.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>

#include "comm/phase.hpp"
#include "machine/machine.hpp"

namespace fourfold {

enum class Operation : int { all_reduce, reduce_scatter, all_gather, broadcast, all_to_all, send, receive, barrier };
inline constexpr int kOperations = 8;
std::string_view operation_name(Operation operation);

struct CommKey {
  Operation operation;
  std::string group;  // the communicator's name: "data", "data+depth", "world"
  Phase phase;
  bool operator<(const CommKey& other) const {
    return std::tie(phase, group, operation) < std::tie(other.phase, other.group, other.operation);
  }
};

struct CommSums {
  std::int64_t calls = 0;
  std::int64_t elements = 0;       // given: the whole operation's (for all_to_all and send: what this rank sends)
  std::int64_t bytes = 0;          // of `elements`
  std::int64_t ring_elements = 0;  // sent by this rank, see above
  std::int64_t ring_bytes = 0;
  std::int64_t messages = 0;             // sent by this rank, see above
  std::int64_t bytes_between_nodes = 0;  // the part of ring_bytes that groups with members on several nodes moved
  std::int64_t bytes_shared = 0;         // the part of ring_bytes for which ranks read each other's memory, without MPI
  double seconds = 0;                    // exposed: inside blocking calls, starts and waits
  Picoseconds virtual_time = 0;          // exposed on the virtual clock
  CommSums& operator+=(const CommSums& other);
};

class CommLedger {
 public:
  void record(const CommKey& key, std::int64_t elements, std::int64_t element_size, std::int64_t ring_elements,
              std::int64_t messages, bool between_nodes);
  void add_seconds(const CommKey& key, double seconds) { sums_[key].seconds += seconds; }
  void add_shared(const CommKey& key, std::int64_t ring_bytes) { sums_[key].bytes_shared += ring_bytes; }
  void add_virtual(const CommKey& key, Picoseconds time) { sums_[key].virtual_time += time; }

  const std::map<CommKey, CommSums>& sums() const { return sums_; }
  CommSums sum(Operation operation, std::string_view group, Phase phase) const;  // zeros when there was no such call
  CommSums group_sum(std::string_view group) const;
  CommSums total() const;
  void clear() { sums_.clear(); }

  // One aligned line per (phase, group, operation): calls, elements, ring-equivalent elements and bytes, exposed
  // seconds.
  std::string report() const;

 private:
  std::map<CommKey, CommSums> sums_;
};

}  // namespace fourfold
