// The rules that a schedule is checked by, in the order in which they may be asked: each takes for granted that those
// before it found nothing. Every fault is one sentence that names the operations. At most kMostFaults of each rule set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "schedule/checker.hpp"
#include "schedule/schedule.hpp"

namespace fourfold {

inline constexpr std::size_t kMostFaults = 20;

// Every operation is of a chunk of its stage and of a micro-batch that exists; every (chunk, micro-batch) has one
// forward, and either one backward or one input gradient and one weight gradient, in this order; each chunk's gradients
// are added in ascending micro-batch order. Looks at computing operations only.
std::vector<std::string> compute_faults(const Schedule& schedule);

// Transfers: to the right stage, each sent once and received once, after it is made and before it is used, in one order
// on both ends of a channel; and no stage waits in a circle, even where sends and receives block until both sides are
// there.
std::vector<std::string> transfer_faults(const Schedule& schedule);

// Gathers and releases in pairs around runs, one reduction a chunk after its last weight gradient, offload after the
// forward and load between it and the backward, one step at the end.
std::vector<std::string> service_faults(const Schedule& schedule);

// The most activation sets that a stage holds at once, and the operation (an index) that makes them so many.
struct PeakSets {
  int most = 0;
  std::size_t at = 0;
};
PeakSets peak_sets(const std::vector<StageOperation>& list);

// The most bytes of activations at once, and the operation that makes them so many.
struct PeakBytes {
  std::int64_t most = 0;
  std::size_t at = 0;
  std::int64_t away = 0;  // the most that is offloaded at once
};
PeakBytes peak_bytes(const std::vector<StageOperation>& list, const std::vector<ActivationBytes>& chunks);

}  // namespace fourfold
