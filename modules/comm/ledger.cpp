#include "comm/ledger.hpp"

#include <cinttypes>
#include <cstdio>

namespace fourfold {

std::string_view phase_name(Phase phase) {
  static constexpr std::string_view names[kPhases] = {"setup",  "forward",  "backward",   "gradient",
                                                      "update", "evaluate", "checkpoint", "control"};
  return names[static_cast<int>(phase)];
}

std::string_view operation_name(Operation operation) {
  static constexpr std::string_view names[kOperations] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                                          "all_to_all", "send",           "receive",    "barrier"};
  return names[static_cast<int>(operation)];
}

CommSums& CommSums::operator+=(const CommSums& other) {
  calls += other.calls;
  elements += other.elements;
  bytes += other.bytes;
  ring_elements += other.ring_elements;
  ring_bytes += other.ring_bytes;
  messages += other.messages;
  bytes_between_nodes += other.bytes_between_nodes;
  bytes_shared += other.bytes_shared;
  seconds += other.seconds;
  virtual_time += other.virtual_time;
  return *this;
}

void CommLedger::record(const CommKey& key, std::int64_t elements, std::int64_t element_size,
                        std::int64_t ring_elements, std::int64_t messages, bool between_nodes) {
  const std::int64_t ring_bytes = ring_elements * element_size;
  sums_[key] += CommSums{.calls = 1,
                         .elements = elements,
                         .bytes = elements * element_size,
                         .ring_elements = ring_elements,
                         .ring_bytes = ring_bytes,
                         .messages = messages,
                         .bytes_between_nodes = between_nodes ? ring_bytes : 0,
                         .bytes_shared = 0,
                         .seconds = 0,
                         .virtual_time = 0};
}

CommSums CommLedger::sum(Operation operation, std::string_view group, Phase phase) const {
  const auto found = sums_.find(CommKey{operation, std::string(group), phase});
  return found == sums_.end() ? CommSums{} : found->second;
}

CommSums CommLedger::group_sum(std::string_view group) const {
  CommSums result;
  for (const auto& [key, sums] : sums_)
    if (key.group == group) result += sums;
  return result;
}

CommSums CommLedger::total() const {
  CommSums result;
  for (const auto& [key, sums] : sums_) result += sums;
  return result;
}

std::string CommLedger::report() const {
  std::string text;
  char line[256];
  std::snprintf(line, sizeof line, "%-10s  %-24s  %-14s  %8s  %16s  %16s  %16s  %10s\n", "phase", "group", "operation",
                "calls", "elements", "ring elements", "ring bytes", "seconds");
  text += line;
  for (const auto& [key, sums] : sums_) {
    std::snprintf(line, sizeof line,
                  "%-10s  %-24s  %-14s  %8" PRId64 "  %16" PRId64 "  %16" PRId64 "  %16" PRId64 "  %10.4f\n",
                  phase_name(key.phase).data(), key.group.c_str(), operation_name(key.operation).data(), sums.calls,
                  sums.elements, sums.ring_elements, sums.ring_bytes, sums.seconds);
    text += line;
  }
  return text;
}

}  // namespace fourfold
