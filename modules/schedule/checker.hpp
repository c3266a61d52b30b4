// Proves a schedule before it runs, and predicts what it holds.
//
// A schedule without faults computes every (chunk, micro-batch) once, adds gradients in ascending order, matches every
// send with one receive in the same order on each channel, and cannot stand still, not even where every send and every
// receive blocks until the other side has come (so neither with MPI_Issend nor with operations that a GPU runs in
// posting order). Its activation sets stay within what it declares.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "schedule/schedule.hpp"

namespace fourfold {

// Bytes on one rank of what a chunk keeps of one micro-batch. Layers that recompute keep their inputs; what the most is
// while one of them has run again stands in the extras.
struct ActivationBytes {
  std::int64_t kept = 0;             // from the forward's start to the input gradient's end; offloaded ones included
  std::int64_t kept_for_weight = 0;  // from then to the weight gradient's end (whole backward: never counted)
  std::int64_t offloaded = 0;        // of kept: away between offload and load
  std::int64_t backward_extra = 0;   // beside kept, while the whole backward runs
  std::int64_t input_extra = 0;      // while the input gradient runs by itself
};

struct ActivationLimits {
  std::vector<ActivationBytes> chunks;  // one a chunk
  std::vector<std::int64_t> most;       // one a stage; empty: no limit, only predicted
};

struct ScheduleReport {
  std::vector<std::string> faults;       // one sentence each, naming the operations
  std::vector<int> in_flight;            // by stage: the most activation sets at once
  std::vector<int> receives;             // by stage: the most receives that are posted and not yet used
  std::vector<std::int64_t> peak_bytes;  // by stage, where bytes are given
  std::vector<std::int64_t> peak_away;   // the same: the most bytes offloaded at once
};

// The predictions are empty where the lists cannot run.
ScheduleReport check_schedule(const Schedule& schedule, const ActivationLimits& limits = {});

// Errors: Error (input) of all ranks with the faults.
void require_sound(const Schedule& schedule, const ActivationLimits& limits = {});

}  // namespace fourfold
