// Names to schedules. Every builder runs the backward (and weight) products of a chunk in ascending micro-batch order,
// so that all of them add the same numbers in the same order.
//
//   gpipe        all forwards, then all backwards (Huang et al. 2019)
//   1f1b         as soon as possible one forward, one backward in turn (Narayanan et al. 2019)
//   interleaved  1f1b with several chunks a stage (Narayanan et al. 2021); groups of micro-batches by quotient and
//                remainder, so that any number of them is legal
//   modular      several chunks a stage, breadth-first: all micro-batches of a chunk, then the next chunk
//                (Lamy-Poirier 2021, 2023); weights gathered once a pass
//   layered      modular with every unit of the model as a chunk of its own: layered gradient accumulation
//   zero_bubble  ZB-H1 with as many activation sets on every stage as there are stages: the backward is split, and
//                weight products fill the gaps (Qi et al. 2024)
//   geo          1f1b with extra micro-batches in flight on the near side of slow boundaries (GeoPipe)
//   list         written by hand (list_text.hpp)
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "schedule/list_text.hpp"
#include "schedule/schedule.hpp"

namespace fourfold {

struct ScheduleRequest {
  std::string builder = "1f1b";
  std::int64_t stages = 1;
  std::int64_t micro_batches = 1;
  std::int64_t interleave = 1;                // chunks a stage: interleaved, modular and list
  std::int64_t units = 1;                     // of the model: the chunks of layered
  std::vector<std::int64_t> extra_in_flight;  // of geo: one entry a boundary between stages
  std::vector<std::string> lists;             // of list: one text a stage
};

const std::vector<std::string>& schedule_builders();  // their names

// Errors: Error (input) of all ranks with every fault and the legal values.
Schedule build_schedule(const ScheduleRequest& request);

// Of builder list, as far as single stages show them: what is wrong with its texts. One text a stage is wanted.
std::vector<ListFault> list_faults(const ScheduleRequest& request);

}  // namespace fourfold
