// A deck's pipeline as `check` shows it.
#pragma once

#include <string>
#include <vector>

#include "deck/reader.hpp"
#include "schedule/drawing.hpp"
#include "train/pipeline.hpp"

namespace fourfold {

struct Pipeline : PipelinePlan {
  Durations durations;  // emulate.stage_times, else FLOPs of the rank that has most, for one token
  TickUnit unit;
};

// `deck` with its batch settled. Errors: Error (input) of all ranks, if there is no such schedule.
Pipeline pipeline_of(const Deck& deck);

// What is wrong with a schedule by hand, which the deck's own rules do not read, and where it stands; nothing while the
// number of micro-batches is not known.
std::vector<DeckError> schedule_list_faults(const ReadResult& read, const std::string& file_name);

// Cuts, costs and the timeline.
std::string pipeline_text(const Pipeline& pipeline);

}  // namespace fourfold
