// What a study sees of one session of a trial: of its steps alone, without evaluations, checkpoints and the start.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/memory_ledger.hpp"
#include "comm/communicator.hpp"
#include "machine/machine.hpp"

namespace fourfold::study {

struct AxisUse {
  std::int64_t messages = 0, bytes = 0;  // of the last step, sent by all ranks on rings
  std::int64_t bytes_between = 0;        // the part in groups of several nodes
  double exposed = 0, virtual_time = 0;  // seconds of all steps, of a rank: the mean
};

struct SessionReport {
  std::int64_t first_step = 0, steps = 0;
  std::map<std::string, AxisUse> axes;
  std::array<std::int64_t, kMemoryTags> peaks{};  // bytes, of the rank with the most
  std::int64_t peak_total = 0;
  std::vector<Picoseconds> virtual_steps;  // time of each step on the virtual clock; empty: no machine is emulated
};

std::string session_json(const SessionReport& session);
SessionReport read_session(const std::string& json);

// Watches the steps of a session on one rank.
class StepWatch {
 public:
  explicit StepWatch(const Communicator& group) : group_(group) {}
  void around(std::int64_t step, bool begins);
  // Collective over the group; the report is rank 0's.
  SessionReport report(const MemoryLedger& memory) const;

 private:
  struct Sums {
    std::int64_t messages = 0, bytes = 0, bytes_between = 0;
    double seconds = 0;
    Picoseconds virtual_time = 0;
  };
  std::map<std::string, Sums> ledger_sums() const;

  const Communicator& group_;
  std::int64_t first_step_ = 0, steps_ = 0;
  std::map<std::string, Sums> before_, last_, all_;
  Picoseconds clock_before_ = 0;
  std::vector<Picoseconds> clock_ends_;  // since the first step began
};

}  // namespace fourfold::study
