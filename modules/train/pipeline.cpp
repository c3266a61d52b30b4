#include "train/pipeline.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "comm/grid_comms.hpp"
#include "deck/derive.hpp"
#include "schedule/checker.hpp"
#include "schedule/transfers.hpp"
#include "train/hand_off.hpp"

namespace fourfold {

StagePart PipelinePlan::part_of(int stage) const {
  StagePart part;
  for (const int chunk : chunks_of_stage(schedule, stage)) part.chunks.push_back(cuts[static_cast<std::size_t>(chunk)]);
  part.tied_stage = tied_stage;
  part.tied_across_grids = tied_across_grids;
  part.first = stage == schedule.stage_of(0);
  return part;
}

ScheduleRequest schedule_request(const Deck& deck) {
  const ParallelDeck& parallel = deck.parallel;
  ScheduleRequest request;
  request.builder = parallel.schedule;
  request.stages = parallel.stages;
  request.micro_batches = deck.batch.micro_batches;
  request.interleave = parallel.interleave;
  request.units = unit_count(deck.model);
  // Keys of other schedules are left alone.
  if (parallel.schedule == "geo") request.extra_in_flight = parallel.extra_in_flight;
  if (parallel.schedule == "list") request.lists = parallel.schedule_list;
  return request;
}

PipelinePlan plan_pipeline(const Deck& deck) {
  PipelinePlan plan;
  plan.units = model_units(describe(deck.model));
  plan.schedule = build_schedule(schedule_request(deck));
  require_sound(plan.schedule);
  std::vector<std::int64_t> costs;
  for (const ModelUnit& unit : plan.units) costs.push_back(unit.flops.total());
  FOURFOLD_ASSERT(std::ssize(costs) == unit_count(deck.model), "the graph has the model's units");
  plan.cuts = deck.parallel.cuts.empty() || deck.parallel.schedule == "layered"
                  ? cut_by_cost(costs, plan.schedule.chunks())
                  : cut_by_counts(deck.parallel.cuts, std::ssize(costs));
  if (deck.model.tie_embeddings) plan.tied_stage = plan.schedule.stage_of(plan.schedule.chunks() - 1);
  plan.tied_across_grids = plan.tied_stage > 0 && deck.parallel.grid(0) != deck.parallel.grid(plan.tied_stage);
  return plan;
}

Schedule forward_schedule(const Schedule& schedule, int micro_batches) {
  Schedule forward;
  forward.builder = "forward";
  forward.stages = schedule.stages;
  forward.micro_batches = micro_batches;
  forward.stage_of_chunk = schedule.stage_of_chunk;
  forward.lists.resize(static_cast<std::size_t>(schedule.stages));
  forward.in_flight.assign(static_cast<std::size_t>(schedule.stages), 1);
  for (int chunk = 0; chunk < forward.chunks(); ++chunk) {
    auto& list = forward.lists[static_cast<std::size_t>(forward.stage_of(chunk))];
    for (int i = 0; i < micro_batches; ++i) list.push_back({OperationKind::forward, chunk, i, -1});
  }
  complete(forward, false);
  return forward;
}

ProcessGrid process_grid(const Deck& deck) {
  std::vector<StageShape> stages;
  for (int stage = 0; stage < deck.parallel.stages; ++stage) stages.push_back(stage_shape(deck, stage));
  return ProcessGrid(std::move(stages));
}

std::vector<GroupKey> rank_groups(const Deck& deck, const PipelinePlan& plan, int stage) {
  const int tied_stage = plan.tied_across_grids ? 0 : plan.tied_stage;
  return dense_axis_sets(kv_sharers(deck.model, deck.parallel.grid(stage).row), tied_stage);
}

std::vector<StageCrossing> stage_crossings(const Deck& deck, const PipelinePlan& plan) {
  const ProcessGrid grid = process_grid(deck);
  const std::int64_t samples = deck.batch.global / deck.batch.micro_batches;
  std::vector<StageCrossing> crossings;
  for (int boundary = 0; boundary + 1 < plan.schedule.chunks(); ++boundary) {
    if (!plan.schedule.crosses(boundary)) continue;
    StageCrossing& crossing = crossings.emplace_back();
    crossing.boundary = boundary;
    crossing.from = plan.schedule.stage_of(boundary);
    crossing.to = plan.schedule.stage_of(boundary + 1);
    const std::vector<int> before = grid.ranks_of_stage(crossing.from), behind = grid.ranks_of_stage(crossing.to);
    for (const bool forwards : {true, false}) {
      const StageOperation transfer{forwards ? OperationKind::receive_activation : OperationKind::receive_gradient,
                                    forwards ? boundary + 1 : boundary, 0, -1};
      const TransferSides sides = sides_of(deck, grid, plan.cuts, plan.schedule, transfer, samples);
      for (std::size_t i = 0; i < sides.receivers.size(); ++i) {
        (forwards ? crossing.forwards : crossing.backwards) += size_of(sides.receivers[i]);
        for (const CrossingPiece& piece : pieces_to_receive(sides.senders, sides.receivers, static_cast<int>(i))) {
          const auto peer = static_cast<std::size_t>(piece.peer);
          crossing.pairs.emplace_back(before[forwards ? peer : i], behind[forwards ? i : peer]);
        }
      }
    }
  }
  return crossings;
}

namespace {

// By stage: the peak of the activations at each stage's place in `places`.
std::vector<std::int64_t> activation_peaks(const Deck& deck, const Graph& graph, const PipelinePlan& plan,
                                           const std::vector<Coordinates>& places) {
  ActivationLimits limits;
  for (std::size_t chunk = 0; chunk < plan.cuts.size(); ++chunk) {
    const Range& units = plan.cuts[chunk];
    const Coordinates& here = places[static_cast<std::size_t>(plan.schedule.stage_of(static_cast<int>(chunk)))];
    const Deck own = deck_of_place(deck, here);
    ActivationBytes& bytes = limits.chunks.emplace_back();
    bytes.kept = activation_bytes(own, graph, here, units, KeptFor::backward);
    bytes.kept_for_weight = activation_bytes(own, graph, here, units, KeptFor::weights);
  }
  return check_schedule(plan.schedule, limits).peak_bytes;
}

}  // namespace

MemoryPerRank memory_of_rank(const Deck& deck, const Graph& graph, const PipelinePlan& plan, const Coordinates& here) {
  std::vector<Coordinates> places(static_cast<std::size_t>(plan.schedule.stages));
  for (std::size_t stage = 0; stage < places.size(); ++stage) places[stage].stage = static_cast<int>(stage);
  const auto stage = static_cast<std::size_t>(here.stage);
  places[stage] = here;
  return memory_of_rank(deck_of_place(deck, here), graph, here, plan.part_of(here.stage),
                        activation_peaks(deck, graph, plan, places)[stage]);
}

MemoryPerRank memory_per_rank(const Deck& deck, const Graph& graph, const PipelinePlan& plan) {
  // Of each stage those that may have most; one of each in a round.
  std::vector<std::vector<Coordinates>> fullest;
  std::size_t rounds = 0;
  for (int stage = 0; stage < deck.parallel.stages; ++stage) {
    Coordinates here;
    here.stage = stage;
    fullest.push_back(fullest_places(deck_of_place(deck, here).parallel));
    for (Coordinates& place : fullest.back()) place.stage = stage;
    rounds = std::max(rounds, fullest.back().size());
  }
  MemoryPerRank most;
  for (std::size_t round = 0; round < rounds; ++round) {
    std::vector<Coordinates> places;
    for (const auto& of_stage : fullest) places.push_back(of_stage[std::min(round, of_stage.size() - 1)]);
    const std::vector<std::int64_t> peaks = activation_peaks(deck, graph, plan, places);
    for (const Coordinates& here : places) {
      const MemoryPerRank memory = memory_of_rank(deck_of_place(deck, here), graph, here, plan.part_of(here.stage),
                                                  peaks[static_cast<std::size_t>(here.stage)]);
      if (memory.total() > most.total()) most = memory;
    }
  }
  return most;
}

}  // namespace fourfold
