#include "train/pipeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "base/units.hpp"
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

bool PipelinePlan::any(const Range& cut, Keeping wanted) const {
  return std::find(keeping.begin() + cut.begin, keeping.begin() + cut.end, wanted) != keeping.begin() + cut.end;
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

namespace {

// Rows are cut over data and depth, features over row and col; attention has its heads over row.
RankShares rank_shares(const Deck& deck, const DenseShape& grid) {
  const ParallelDeck& parallel = deck.parallel;
  const std::int64_t samples = std::max<std::int64_t>(1, deck.batch.global / deck.batch.micro_batches);
  const std::int64_t most = part(samples, parallel.coordinates(grid), 0).size();
  const std::int64_t tokens = parallel.depth_splits == DepthSplits::sequence ? grid.depth : 1;
  const std::int64_t heads =
      parallel.attention_split == AttentionSplit::col ? grid.row * std::int64_t{grid.col} : grid.row;
  return {{most, capped_product({samples, tokens, grid.row, grid.col})},
          {most, capped_product({samples, tokens, heads})}};
}

RankTimes rank_times(const Deck& deck, const Graph& graph) {
  std::vector<RankShares> shares;
  for (int stage = 0; stage < deck.parallel.stages; ++stage)
    shares.push_back(rank_shares(deck, deck.parallel.grid(stage)));
  constexpr double kAgain = 2;  // with what runs again
  return {std::move(shares),
          kAgain * static_cast<double>(graph.training_flops()) * static_cast<double>(deck.batch.micro_batches)};
}

}  // namespace

PipelinePlan plan_pipeline(const Deck& deck) {
  const Graph graph = describe(deck.model);
  PipelinePlan plan;
  plan.units = model_units(graph);
  plan.times = rank_times(deck, graph);
  plan.schedule = build_schedule(schedule_request(deck));
  const std::int64_t units = std::ssize(plan.units);
  FOURFOLD_ASSERT(units == unit_count(deck.model), "the graph has the model's units");
  plan.cuts = deck.parallel.cuts.empty() || deck.parallel.schedule == "layered"
                  ? cut_by_cost(plan.units, plan.schedule.stage_of_chunk, plan.times)
                  : cut_by_counts(deck.parallel.cuts, units);
  plan.keeping = keeping_of_units(deck);
  std::vector<bool> away;
  for (const Range& cut : plan.cuts) away.push_back(plan.any(cut, Keeping::offload));
  // The next set comes back while one backward runs.
  if (plan.offloads()) add_offload(plan.schedule, away, 1);
  require_sound(plan.schedule);
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
  std::vector<GroupKey> sets = dense_axis_sets(kv_sharers(deck.model, deck.parallel.grid(stage).row), tied_stage);
  if (deck.model.moe) {
    for (const GroupKey& set : moe_axis_sets()) sets.push_back(set);
    if (deck.model.moe->migration.every > 0) sets.push_back(AxisSet{Axis::replica, Axis::expert});
  }
  return sets;
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
      const bool alike = sides.senders == sides.receivers;  // then each has one peer, its counterpart
      for (std::size_t i = 0; i < sides.receivers.size(); ++i) {
        const Index size = size_of(sides.receivers[i]);
        (forwards ? crossing.forwards : crossing.backwards) += size;
        if (alike) {
          if (size > 0) crossing.pairs.emplace_back(before[i], behind[i]);
          continue;
        }
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

// Of one chunk. The extras: the most that is there when a unit has run again, beyond what the chunk keeps. The units
// before it are as forward left them; those behind it are done with, or wait for their weight gradients.
ActivationBytes chunk_bytes(const Deck& deck, const PipelinePlan& plan, const Coordinates& here, const Range& units) {
  const auto of = [&](std::int64_t unit, KeptFor what) { return activation_bytes(deck, here, unit, what); };
  ActivationBytes bytes;
  for (std::int64_t unit = units.begin; unit < units.end; ++unit) {
    const std::int64_t kept = of(unit, KeptFor::backward);
    bytes.kept += kept;
    bytes.kept_for_weight += of(unit, KeptFor::weights);
    if (plan.keeping[static_cast<std::size_t>(unit)] == Keeping::offload) bytes.offloaded += kept;
  }
  std::int64_t before = bytes.kept, behind = 0;
  for (std::int64_t unit = units.end; unit-- > units.begin;) {
    before -= of(unit, KeptFor::backward);
    if (runs_again(deck, unit, plan.keeping[static_cast<std::size_t>(unit)])) {
      const std::int64_t now = before + of(unit, KeptFor::whole) - bytes.kept;
      const std::int64_t gradient = of(unit, KeptFor::gradient);
      // What comes from another chunk is a buffer, but for a copy that the weight gradients want.
      bytes.backward_extra = std::max(bytes.backward_extra, now + (unit + 1 < units.end ? gradient : 0));
      bytes.input_extra = std::max(bytes.input_extra, now + behind + gradient);
    }
    behind += of(unit, KeptFor::weights);
  }
  return bytes;
}

// By stage, each at its place in `places`.
ScheduleReport activation_report(const Deck& deck, const PipelinePlan& plan, const std::vector<Coordinates>& places) {
  ActivationLimits limits;
  for (std::size_t chunk = 0; chunk < plan.cuts.size(); ++chunk) {
    const Coordinates& here = places[static_cast<std::size_t>(plan.schedule.stage_of(static_cast<int>(chunk)))];
    limits.chunks.push_back(chunk_bytes(deck_of_place(deck, here), plan, here, plan.cuts[chunk]));
  }
  return check_schedule(plan.schedule, limits);
}

// Of each stage those that may have most.
std::vector<std::vector<Coordinates>> fullest_of_stages(const Deck& deck) {
  std::vector<std::vector<Coordinates>> fullest;
  for (int stage = 0; stage < deck.parallel.stages; ++stage) {
    Coordinates here;
    here.stage = stage;
    fullest.push_back(fullest_places(deck_of_place(deck, here)));
    for (Coordinates& place : fullest.back()) place.stage = stage;
  }
  return fullest;
}

// "layers.0 to layers.3, head"
std::string names_of(const PipelinePlan& plan, const std::vector<std::int64_t>& units) {
  std::vector<std::string> runs;
  const auto name = [&](std::size_t i) { return plan.units[static_cast<std::size_t>(units[i])].name; };
  for (std::size_t i = 0; i < units.size();) {
    std::size_t last = i;
    while (last + 1 < units.size() && units[last + 1] == units[last] + 1) ++last;
    runs.push_back(last > i ? fmt::format("{} to {}", name(i), name(last)) : name(i));
    i = last + 1;
  }
  return fmt::format("{}", fmt::join(runs, ", "));
}

}  // namespace

ForwardWork recomputed_work(const Deck& deck, const Graph& graph, const PipelinePlan& plan, const Range& units) {
  const ActivationsDeck& activations = deck.parallel.activations;
  ForwardWork work;
  for (std::int64_t i = units.begin; i < units.end; ++i) {
    const ModelUnit& unit = plan.units[static_cast<std::size_t>(i)];
    const Keeping keeping = plan.keeping[static_cast<std::size_t>(i)];
    if (!runs_again(deck, i, keeping)) continue;
    for (std::int64_t l = unit.layers.begin; l < unit.layers.end; ++l) {
      const LayerCost& layer = graph.layers[static_cast<std::size_t>(l)];
      const char* sublayer = layer.kind == LayerKind::attention ? "attention" : "ffn";
      if (keeping != Keeping::recompute && !recomputes_sublayer(activations, sublayer)) continue;
      work += {2 * layer.product_elements, layer.attention_flops};
    }
  }
  return work;
}

std::string activations_text(const Deck& deck, const PipelinePlan& plan) {
  std::string text;
  std::vector<Coordinates> places;
  for (const auto& of_stage : fullest_of_stages(deck)) places.push_back(of_stage.front());
  const ScheduleReport report = activation_report(deck, plan, places);
  for (int stage = 0; stage < plan.schedule.stages; ++stage) {
    std::vector<std::string> parts;
    const auto add = [&](const std::string& verb, Keeping keeping, bool in_part) {
      std::vector<std::int64_t> units;
      for (const Range& chunk : plan.part_of(stage).chunks) {
        for (std::int64_t unit = chunk.begin; unit < chunk.end; ++unit) {
          const bool part = keeping != Keeping::recompute && runs_again(deck, unit, keeping);
          if (plan.keeping[static_cast<std::size_t>(unit)] == keeping && part == in_part) units.push_back(unit);
        }
      }
      if (!units.empty()) parts.push_back(fmt::format("{} {}", verb, names_of(plan, units)));
    };
    const std::string sublayers = fmt::format("{}", fmt::join(deck.parallel.activations.sublayers, " and "));
    add("keeps", Keeping::keep, false);
    add("recomputes " + sublayers + " and keeps the rest of", Keeping::keep, true);
    add("recomputes", Keeping::recompute, false);
    add("offloads", Keeping::offload, false);
    add("recomputes " + sublayers + " and offloads the rest of", Keeping::offload, true);
    const auto s = static_cast<std::size_t>(stage);
    parts.push_back(fmt::format("{} B at the peak", format_thousands(report.peak_bytes[s])));
    if (report.peak_away[s] > 0)
      parts.push_back(fmt::format("{} B away at once", format_thousands(report.peak_away[s])));
    text += fmt::format("  stage {}: {}\n", stage, fmt::join(parts, "; "));
  }
  return text;
}

MemoryPerRank memory_of_rank(const Deck& deck, const PipelinePlan& plan, const Coordinates& here) {
  std::vector<Coordinates> places(static_cast<std::size_t>(plan.schedule.stages));
  for (std::size_t stage = 0; stage < places.size(); ++stage) places[stage].stage = static_cast<int>(stage);
  const auto stage = static_cast<std::size_t>(here.stage);
  places[stage] = here;
  return memory_of_rank(deck_of_place(deck, here), here, plan.part_of(here.stage),
                        activation_report(deck, plan, places).peak_bytes[stage]);
}

MemoryPerRank memory_per_rank(const Deck& deck, const PipelinePlan& plan) {
  const std::vector<std::vector<Coordinates>> fullest = fullest_of_stages(deck);
  std::size_t rounds = 0;  // of one place a stage
  for (const auto& of_stage : fullest) rounds = std::max(rounds, of_stage.size());
  MemoryPerRank most;
  std::int64_t saved_copy = 0;
  for (std::size_t round = 0; round < rounds; ++round) {
    std::vector<Coordinates> places;
    for (const auto& of_stage : fullest) places.push_back(of_stage[std::min(round, of_stage.size() - 1)]);
    const std::vector<std::int64_t> peaks = activation_report(deck, plan, places).peak_bytes;
    for (const Coordinates& here : places) {
      const MemoryPerRank memory = memory_of_rank(deck_of_place(deck, here), here, plan.part_of(here.stage),
                                                  peaks[static_cast<std::size_t>(here.stage)]);
      if (memory.total() > most.total()) most = memory;
      saved_copy = std::max(saved_copy, memory.saved_copy);
    }
  }
  most.saved_copy = saved_copy;
  return most;
}

}  // namespace fourfold
