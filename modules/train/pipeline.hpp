// From a deck to its pipeline: the units of the model, their cuts into chunks, the schedule, and what each stage holds.
// Arithmetic: nothing here communicates.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "deck/deck.hpp"
#include "grid/process_grid.hpp"
#include "model/describe.hpp"
#include "model/stage_part.hpp"
#include "schedule/builders.hpp"
#include "schedule/cuts.hpp"

namespace fourfold {

struct PipelinePlan {
  std::vector<ModelUnit> units;
  RankTimes times;          // of a stage's busiest rank, for the FLOPs of a token
  std::vector<Range> cuts;  // of the units, one a chunk
  Schedule schedule;        // sound

  StagePart part_of(int stage) const;
  int tied_stage = 0;  // StagePart's
  bool tied_across_grids = false;
  std::vector<Keeping> keeping;  // of the units' activations

  bool any(const Range& cut, Keeping wanted) const;  // whether a unit of the cut is kept so
  bool offloads() const { return any({0, static_cast<std::int64_t>(keeping.size())}, Keeping::offload); }
};

// What the deck's parallel block asks of a builder. `deck` with its batch settled.
ScheduleRequest schedule_request(const Deck& deck);

// Errors: Error (input) of all ranks, if there is no such schedule.
PipelinePlan plan_pipeline(const Deck& deck);

// The forward passes of `micro_batches` on the same stages, for evaluation: each chunk one after the other.
Schedule forward_schedule(const Schedule& schedule, int micro_batches);

// The ranks of all stages, and the groups of them that training uses on a stage.
ProcessGrid process_grid(const Deck& deck);
std::vector<GroupKey> rank_groups(const Deck& deck, const PipelinePlan& plan, int stage);

// What crosses from one stage to the next, of one micro-batch over all ranks, each way; which ranks talk to each other.
struct StageCrossing {
  int boundary = 0;  // between this chunk and the next
  int from = 0, to = 0;
  std::int64_t forwards = 0, backwards = 0;  // elements
  std::vector<std::pair<int, int>> pairs;    // a rank of each stage
};
std::vector<StageCrossing> stage_crossings(const Deck& deck, const PipelinePlan& plan);

// Bytes of one rank of a stage, activations at the schedule's peak; and of the rank that has most. `here`: with its
// stage.
MemoryPerRank memory_of_rank(const Deck& deck, const PipelinePlan& plan, const Coordinates& here);
MemoryPerRank memory_per_rank(const Deck& deck, const PipelinePlan& plan);

// What the backwards of these units add by running forward again. No model FLOPs.
ForwardWork recomputed_work(const Deck& deck, const Graph& graph, const PipelinePlan& plan, const Range& units);
// A line a stage: what its units do with their activations, and the bytes of its first rank.
std::string activations_text(const Deck& deck, const PipelinePlan& plan);

}  // namespace fourfold
