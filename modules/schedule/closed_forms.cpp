#include "schedule/closed_forms.hpp"

#include <algorithm>

namespace fourfold {

std::int64_t pipeline_makespan(std::int64_t stages, std::int64_t micro_batches, const PassTimes& stage) {
  return (micro_batches + stages - 1) * stage.total();
}

std::int64_t interleaved_makespan(std::int64_t stages, std::int64_t chunks_per_stage, std::int64_t micro_batches,
                                  const PassTimes& chunk) {
  return (micro_batches * chunks_per_stage + stages - 1) * chunk.total();
}

std::int64_t zero_bubble_makespan(std::int64_t stages, std::int64_t micro_batches, const PassTimes& stage) {
  const std::int64_t exposed = std::max<std::int64_t>(0, stage.input - std::min(stage.forward, stage.weight));
  return micro_batches * stage.total() + (stages - 1) * (stage.forward + exposed);
}

std::int64_t latency_makespan(std::int64_t stages, std::int64_t micro_batches, const PassTimes& stage,
                              std::int64_t boundary, std::int64_t latency) {
  const std::int64_t later = std::max<std::int64_t>(0, micro_batches - (stages - boundary));
  return pipeline_makespan(stages, micro_batches, stage) + 2 * latency * (1 + (later + 1) / 2);
}

std::int64_t geo_makespan(std::int64_t stages, std::int64_t micro_batches, const PassTimes& stage,
                          std::int64_t latency) {
  return pipeline_makespan(stages, micro_batches, stage) + 2 * latency;
}

std::int64_t extra_for_latency(const PassTimes& stage, std::int64_t latency) {
  return (2 * latency + stage.total() - 1) / stage.total();
}

StepCounts standard_counts(std::int64_t layers, std::int64_t stages, std::int64_t micro_batches) {
  return {2 * layers * micro_batches, layers * micro_batches, 2 * micro_batches * (stages - 1)};
}

StepCounts layered_counts(std::int64_t layers, std::int64_t stages, std::int64_t micro_batches) {
  return {2 * layers, layers, stages == 1 ? 0 : 2 * micro_batches * (layers - 1)};
}

}  // namespace fourfold
