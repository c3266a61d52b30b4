// When each operation of a schedule runs, in integer ticks: from durations of the products and latencies of the
// boundaries. Deterministic: the same list and numbers give the same times.
//
// A stage runs its computing operations one after another, in the order of its list. A send costs nothing and arrives a
// latency later; a receive costs nothing, what uses it waits for the arrival. Gathers, reductions and the step cost
// nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "schedule/schedule.hpp"

namespace fourfold {

// Of one micro-batch through one chunk. A whole backward takes input + weight.
struct PassTimes {
  std::int64_t forward = 0, input = 0, weight = 0;
  std::int64_t backward() const { return input + weight; }
  std::int64_t total() const { return forward + input + weight; }
};

struct Durations {
  std::vector<PassTimes> chunks;      // one a chunk
  std::vector<std::int64_t> latency;  // one a boundary between chunks; empty: free links
};
Durations equal_durations(const Schedule& schedule, const PassTimes& times);

struct Span {
  std::size_t operation = 0;  // index in the stage's list
  std::int64_t begin = 0, end = 0;
};

struct Timeline {
  std::vector<std::vector<Span>> stages;  // computing operations, in order
  std::int64_t makespan = 0;
  std::int64_t busy(int stage) const;  // ticks of the stage's products
  double idle_share() const;           // of all stages together; 0 where nothing takes time
};

// `schedule` must be sound (checker.hpp): one that stands still is an assertion. Errors: Error (input) of all ranks, if
// the sum of all times does not fit.
Timeline evaluate(const Schedule& schedule, const Durations& durations);

}  // namespace fourfold
