#include "pipeline.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "model/describe.hpp"

namespace fourfold {
namespace {

constexpr int kMostColumns = 150;  // of a drawn timeline

// Across each boundary between chunks: the latency of the slowest link that its messages use on the described machine.
std::vector<std::int64_t> latencies(const Deck& deck, const PipelinePlan& plan) {
  const Machine& machine = *deck.emulate.description;
  std::vector<std::int64_t> list(static_cast<std::size_t>(plan.schedule.chunks() - 1), 0);
  for (const StageCrossing& crossing : stage_crossings(deck, plan)) {
    std::int64_t& latency = list[static_cast<std::size_t>(crossing.boundary)];
    for (const auto& [before, behind] : crossing.pairs) {
      const bool inside = machine.node_of(before) == machine.node_of(behind);
      latency = std::max(latency, machine.link(inside ? LinkClass::inside : LinkClass::between).latency);
    }
  }
  return list;
}

std::string units_text(const Pipeline& pipeline, const Range& cut) {
  const auto name = [&](std::int64_t unit) { return pipeline.units[static_cast<std::size_t>(unit)].name; };
  return cut.size() == 1 ? name(cut.begin) : name(cut.begin) + " to " + name(cut.end - 1);
}

}  // namespace

Pipeline pipeline_of(const Deck& deck) {
  Pipeline pipeline{plan_pipeline(deck), {}, {}};
  const Graph graph = describe(deck.model);
  const std::vector<std::int64_t>& given = deck.emulate.stage_times;
  if (given.empty()) {
    for (std::size_t c = 0; c < pipeline.cuts.size(); ++c) {
      const int stage = pipeline.schedule.stage_of_chunk[c];
      PassTimes times = pipeline.times(stage, work_of(pipeline.units, pipeline.cuts[c]));
      times.input += pipeline.times(stage, recomputed_work(deck, graph, pipeline, pipeline.cuts[c])).forward;
      pipeline.durations.chunks.push_back(times);
    }
    const std::int64_t samples = deck.batch.global / deck.batch.micro_batches;
    pipeline.unit = {
        static_cast<double>(samples * graph.tokens_per_sample) / static_cast<double>(pipeline.times.ticks_per_flop()),
        "FLOP"};
  } else {
    pipeline.durations = equal_durations(pipeline.schedule, {given[0], given[1], given[2]});
    if (deck.emulate.description) pipeline.durations.latency = latencies(deck, pipeline);
    pipeline.unit = {1e-12, "s"};
  }
  return pipeline;
}

std::vector<DeckError> schedule_list_faults(const ReadResult& read, const std::string& file_name) {
  const Deck& deck = read.deck;
  std::vector<DeckError> errors;
  if (deck.parallel.schedule != "list" || deck.batch.micro_batches == 0) return errors;
  const std::string key = "parallel.schedule_list";
  const auto add = [&](const std::string& where, const std::string& message) {
    const auto place = read.places.find(where);
    const Place at = place == read.places.end() ? Place{file_name, 0, 0} : place->second;
    errors.push_back({at.file, at.line, at.column, key, message});
  };
  for (const ListFault& fault : list_faults(schedule_request(deck))) {
    add(fault.stage < 0 ? key : key + "[" + std::to_string(fault.stage + 1) + "]", fault.message);
  }
  if (!errors.empty()) return errors;
  try {
    build_schedule(schedule_request(deck));
  } catch (const Error& error) {
    add(key, error.what());
  }
  return errors;
}

std::string pipeline_text(const Pipeline& pipeline) {
  const Schedule& schedule = pipeline.schedule;
  const Timeline timeline = evaluate(schedule, pipeline.durations);
  std::string text = fmt::format("schedule {}: {} stages, {} chunks, {} micro-batches\n", schedule.builder,
                                 schedule.stages, schedule.chunks(), schedule.micro_batches);
  double all = 0;
  std::vector<double> costs;
  for (const Range& cut : pipeline.cuts) {
    costs.push_back(static_cast<double>(work_of(pipeline.units, cut).flops().total()));
    all += costs.back();
  }
  for (int chunk = 0; chunk < schedule.chunks(); ++chunk) {
    const auto c = static_cast<std::size_t>(chunk);
    text += fmt::format("  chunk {} on stage {}: {}; {:.1f} % of the FLOPs\n", chunk, schedule.stage_of(chunk),
                        units_text(pipeline, pipeline.cuts[c]), 100 * costs[c] / all);
  }
  return text + draw_text(schedule, timeline, pipeline.unit, kMostColumns);
}

}  // namespace fourfold
