#include "train/pipeline.hpp"

#include "base/error.hpp"
#include "comm/grid_comms.hpp"
#include "deck/derive.hpp"
#include "schedule/checker.hpp"
#include "schedule/transfers.hpp"

namespace fourfold {

StagePart PipelinePlan::part_of(int stage) const {
  StagePart part;
  for (const int chunk : chunks_of_stage(schedule, stage)) part.chunks.push_back(cuts[static_cast<std::size_t>(chunk)]);
  part.tied_stage = tied_stage;
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
  return ProcessGrid(std::vector<StageShape>(static_cast<std::size_t>(deck.parallel.stages), stage_shape(deck)));
}

std::vector<GroupKey> rank_groups(const Deck& deck, const PipelinePlan& plan) {
  return dense_axis_sets(kv_sharers(deck.model, deck.parallel.dense.row), plan.tied_stage);
}

namespace {

// By stage: the peak of the activations at a place in its grid.
std::vector<std::int64_t> activation_peaks(const Deck& deck, const Graph& graph, const PipelinePlan& plan,
                                           const Coordinates& here) {
  ActivationLimits limits;
  for (const Range& units : plan.cuts) {
    ActivationBytes& bytes = limits.chunks.emplace_back();
    bytes.kept = activation_bytes(deck, graph, here, units, KeptFor::backward);
    bytes.kept_for_weight = activation_bytes(deck, graph, here, units, KeptFor::weights);
  }
  return check_schedule(plan.schedule, limits).peak_bytes;
}

}  // namespace

MemoryPerRank memory_of_rank(const Deck& deck, const Graph& graph, const PipelinePlan& plan, const Coordinates& here) {
  const auto stage = static_cast<std::size_t>(here.stage);
  return memory_of_rank(deck, graph, here, plan.part_of(here.stage), activation_peaks(deck, graph, plan, here)[stage]);
}

MemoryPerRank memory_per_rank(const Deck& deck, const Graph& graph, const PipelinePlan& plan) {
  MemoryPerRank most;
  for (const Coordinates& here : fullest_places(deck.parallel)) {
    const std::vector<std::int64_t> peaks = activation_peaks(deck, graph, plan, here);
    for (int stage = 0; stage < deck.parallel.stages; ++stage) {
      const MemoryPerRank memory =
          memory_of_rank(deck, graph, here, plan.part_of(stage), peaks[static_cast<std::size_t>(stage)]);
      if (memory.total() > most.total()) most = memory;
    }
  }
  return most;
}

}  // namespace fourfold
