// What schedules of equal stages take, in closed form. P stages, M micro-batches, v chunks a stage, L layers; times are
// those of one micro-batch through one chunk (a stage, where it has one). Links are free unless a latency is given.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/timeline.hpp"

namespace fourfold {

// gpipe and 1f1b (Huang et al. 2019; Narayanan et al. 2019; PALM's check): (M + P - 1)(tF + tB).
std::int64_t pipeline_makespan(std::int64_t stages, std::int64_t micro_batches, const PassTimes& stage);

// interleaved, modular and layered with M >= P: (M v + P - 1)(tF + tB). Against the ideal M v (tF + tB) the bubble is
// (P - 1)/(M v) = (P - 1) P/(M L) with v = L/P layers a stage (Lamy-Poirier 2021).
std::int64_t interleaved_makespan(std::int64_t stages, std::int64_t chunks_per_stage, std::int64_t micro_batches,
                                  const PassTimes& chunk);

// zero_bubble with M >= P, a list that holds P activation sets on every stage:
// M(tF + tI + tW) + (P - 1)(tF + max(0, tI - min(tF, tW))). With tF = tI = tW this is the bubble of ZB-H1, (P - 1)(tF +
// tI - tW) (Qi et al. 2024).
std::int64_t zero_bubble_makespan(std::int64_t stages, std::int64_t micro_batches, const PassTimes& stage);

// A latency d on the boundary behind stage b alone. 1f1b: two micro-batches a round trip after the first P - b, so
// (M + P - 1)(tF + tB) + 2d (1 + ceil(max(0, M - (P - b))/2)). P = 4, M = 16, b = 1, tF = 1, tB = 2: 57 + 16d.
std::int64_t latency_makespan(std::int64_t stages, std::int64_t micro_batches, const PassTimes& stage,
                              std::int64_t boundary, std::int64_t latency);
// geo with extra_for_latency micro-batches more in flight across it (GeoPipe): one round trip, whatever M is.
std::int64_t geo_makespan(std::int64_t stages, std::int64_t micro_batches, const PassTimes& stage,
                          std::int64_t latency);
std::int64_t extra_for_latency(const PassTimes& stage, std::int64_t latency);  // ceil(2d/(tF + tB))

// In a step: gathers of a layer's weights, scatters of a layer's gradients, messages between stages (Lamy-Poirier
// 2021). standard: one chunk a stage. layered: every layer a chunk, the stages in turn.
struct StepCounts {
  std::int64_t gathers, reduce_scatters, messages;
};
StepCounts standard_counts(std::int64_t layers, std::int64_t stages, std::int64_t micro_batches);  // 2LM, LM, 2M(P-1)
StepCounts layered_counts(std::int64_t layers, std::int64_t stages, std::int64_t micro_batches);   // 2L, L, 2M(L-1)

}  // namespace fourfold
