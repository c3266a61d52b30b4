// Schedules written by hand: one text a stage, such as "F0 F1 B0 F2 I1 W1 B2".
//
// F forward, B whole backward, I its input gradient, W its weight gradient, then the micro-batch (from 0), or a range
// of them: F0-3. ".v" names the chunk where a stage has several, counted from 0 on that stage: F0.1, F0-3.1. Transfers,
// reductions and the step are added (transfers.hpp).
#pragma once

#include <string>
#include <vector>

#include "schedule/schedule.hpp"

namespace fourfold {

// What is wrong with one of the texts, or, of stage -1, with all of them together.
struct ListFault {
  int stage = -1;
  std::string message;  // of a stage: names it, and the entry (from 1)
};

// Fills lists (of computing operations) and in_flight of a schedule whose stages, micro-batches and chunks are set; one
// text a stage. Returns all faults; none: the lists are sound.
std::vector<ListFault> read_lists(Schedule& schedule, const std::vector<std::string>& texts);

}  // namespace fourfold
