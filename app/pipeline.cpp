#include "pipeline.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "model/describe.hpp"

namespace fourfold {
namespace {

constexpr int kMostColumns = 150;  // of a drawn timeline

// Across each boundary between chunks: the latency of the slowest link that its messages use on the described machine.
std::vector<std::int64_t> latencies(const Deck& deck, const Schedule& schedule) {
  const Machine& machine = *deck.emulate.description;
  const std::int64_t ranks = deck.parallel.dense.size();  // of a stage
  std::vector<std::int64_t> list;
  for (int boundary = 0; boundary + 1 < schedule.chunks(); ++boundary) {
    std::int64_t latency = 0;
    for (std::int64_t i = 0; i < ranks && schedule.crosses(boundary); ++i) {
      const bool inside = machine.node_of(schedule.stage_of(boundary) * ranks + i) ==
                          machine.node_of(schedule.stage_of(boundary + 1) * ranks + i);
      latency = std::max(latency, machine.link(inside ? LinkClass::inside : LinkClass::between).latency);
    }
    list.push_back(latency);
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
  const std::vector<std::int64_t>& times = deck.emulate.stage_times;
  if (times.empty()) {
    pipeline.durations.chunks = chunk_flops(pipeline.units, pipeline.cuts);
    const std::int64_t samples = deck.batch.global / deck.batch.micro_batches;
    pipeline.unit = {static_cast<double>(samples * graph.tokens_per_sample), "FLOP"};
  } else {
    pipeline.durations = equal_durations(pipeline.schedule, {times[0], times[1], times[2]});
    if (deck.emulate.description) pipeline.durations.latency = latencies(deck, pipeline.schedule);
    pipeline.unit = {1e-12, "s"};
  }
  return pipeline;
}

std::vector<DeckError> schedule_list_faults(const Deck& deck, const std::string& file_name) {
  if (deck.parallel.schedule != "list" || deck.batch.micro_batches == 0) return {};
  try {
    build_schedule(schedule_request(deck));
  } catch (const Error& error) {
    return {{file_name, 0, 0, "parallel.schedule_list", error.what()}};
  }
  return {};
}

std::string pipeline_text(const Pipeline& pipeline) {
  const Schedule& schedule = pipeline.schedule;
  const Timeline timeline = evaluate(schedule, pipeline.durations);
  std::string text = fmt::format("schedule {}: {} stages, {} chunks, {} micro-batches\n", schedule.builder,
                                 schedule.stages, schedule.chunks(), schedule.micro_batches);
  double all = 0;
  std::vector<double> costs;
  for (const PassTimes& flops : chunk_flops(pipeline.units, pipeline.cuts)) {
    costs.push_back(static_cast<double>(flops.total()));
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
