// Who holds up the others: what each rank computed in its steps, without the time inside communication and waits.
#pragma once

#include <cstdint>
#include <string>

#include "comm/communicator.hpp"

namespace fourfold {

// Seconds of a step, means over the session's steps. A rank that is slow waits least: its own time is booked on it, the
// others' waiting on them.
struct SlowRanks {
  std::int64_t steps = 0;                     // none: nothing is known
  double least = 0, median = 0, largest = 0;  // of the ranks, computing
  double waiting_median = 0, waiting_largest = 0;
  int slowest = 0;  // the rank that computes longest
  std::string host;
};

// This rank's seconds in some steps, and those of them inside communication and waits.
struct StepSeconds {
  double all = 0, waiting = 0;
};

// The ledger's seconds in the phases of steps, from the start.
double seconds_waited(const Communicator& world);

// Collective; rank 0's.
SlowRanks slow_ranks(const Communicator& world, StepSeconds seconds, std::int64_t steps);

// "a rank computes 1.2 ms of a step (1.1 to 21.3, rank 3 on nid003 longest) and waits for others 20.1 (at most 20.3)"
std::string slow_ranks_text(const SlowRanks& report);

}  // namespace fourfold
