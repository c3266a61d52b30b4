// From a deck to its pipeline: the units of the model, their cuts into chunks, and the schedule. Needs neither MPI nor
// Kokkos.
#pragma once

#include <string>
#include <vector>

#include "deck/reader.hpp"
#include "schedule/builders.hpp"
#include "schedule/cuts.hpp"
#include "schedule/drawing.hpp"

namespace fourfold {

struct Pipeline {
  std::vector<ModelUnit> units;
  std::vector<Range> cuts;  // of the units, one a chunk
  Schedule schedule;        // sound
  Durations durations;      // emulate.stage_times, else FLOPs of one token
  TickUnit unit;
};

// `deck` with its batch settled. Errors: Error (input) of all ranks, if there is no such schedule.
Pipeline pipeline_of(const Deck& deck);

// What is wrong with a schedule by hand, which the deck's own rules do not read; nothing while the number of
// micro-batches is not known.
std::vector<DeckError> schedule_list_faults(const Deck& deck, const std::string& file_name);

// Cuts, costs and the timeline.
std::string pipeline_text(const Pipeline& pipeline);

}  // namespace fourfold
