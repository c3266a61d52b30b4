// From what each stage computes to a whole schedule: transfers, gathers, reductions and the step.
#pragma once

#include <vector>

#include "schedule/schedule.hpp"

namespace fourfold {

// `schedule` with lists of computing operations only. Adds
// - the transfers, in one order for the whole pipeline: all stages run their lists in rounds of one operation, and a
//   transfer is listed on both its stages as soon as what it carries is made. So every list has its transfers in that
//   order, and no stage waits in a circle even where sends and receives block;
// - with gather_once gather_weights before each run of operations of one chunk and one direction, and release_weights
//   after it;
// - reduce_gradients after a chunk's last weight product, and the step.
// Errors: Error (input) of all ranks, if the stages wait for each other: it names the operations.
void complete(Schedule& schedule, bool gather_once);

// Adds offload after the forwards and load `ahead` computing operations before the backwards (at least one) of the
// chunks that `chunks` names by true, one entry a chunk; not where nothing would be computed in between.
void add_offload(Schedule& schedule, const std::vector<bool>& chunks, int ahead);

}  // namespace fourfold
