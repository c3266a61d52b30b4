#include "schedule/checker.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "schedule/rules.hpp"

namespace fourfold {
namespace {

int most_receives(const std::vector<StageOperation>& list) {
  int posted = 0, most = 0;
  // A computing operation uses one receive if one is posted for it; the rules have proved that each is used once.
  std::vector<std::pair<int, int>> waiting[2];  // activations, gradients: chunk and micro-batch
  for (const StageOperation& operation : list) {
    const std::pair<int, int> which{operation.chunk, operation.micro_batch};
    if (is_receive(operation.kind)) {
      waiting[operation.kind == OperationKind::receive_gradient].push_back(which);
      most = std::max(most, ++posted);
    } else if (operation.kind == OperationKind::forward || makes_gradient(operation.kind)) {
      auto& list_of_kind = waiting[operation.kind != OperationKind::forward];
      const auto used = std::find(list_of_kind.begin(), list_of_kind.end(), which);
      if (used == list_of_kind.end()) continue;
      list_of_kind.erase(used);
      --posted;
    }
  }
  return most;
}

}  // namespace

ScheduleReport check_schedule(const Schedule& schedule, const ActivationLimits& limits) {
  const auto stages = static_cast<std::size_t>(schedule.stages);
  FOURFOLD_ASSERT(schedule.lists.size() == stages && schedule.in_flight.size() == stages, "one entry a stage");
  FOURFOLD_ASSERT(limits.chunks.empty() || limits.chunks.size() == schedule.stage_of_chunk.size(), "one entry a chunk");
  FOURFOLD_ASSERT(limits.most.empty() || limits.most.size() == stages, "one entry a stage");
  ScheduleReport report;
  for (const auto rules : {compute_faults, transfer_faults, service_faults}) {
    report.faults = rules(schedule);
    if (!report.faults.empty()) return report;
  }
  for (int stage = 0; stage < schedule.stages; ++stage) {
    const auto s = static_cast<std::size_t>(stage);
    const PeakSets sets = peak_sets(schedule.list(stage));
    report.in_flight.push_back(sets.most);
    report.receives.push_back(most_receives(schedule.list(stage)));
    if (sets.most > schedule.in_flight[s]) {
      report.faults.push_back(place_of(schedule, stage, sets.at) + " makes " + std::to_string(sets.most) +
                              " activation sets in flight, but " + std::to_string(schedule.in_flight[s]) +
                              " are declared");
    }
    if (limits.chunks.empty()) continue;
    const PeakBytes bytes = peak_bytes(schedule.list(stage), limits.chunks);
    report.peak_bytes.push_back(bytes.most);
    report.peak_away.push_back(bytes.away);
    if (!limits.most.empty() && bytes.most > limits.most[s]) {
      report.faults.push_back(place_of(schedule, stage, bytes.at) + " makes " + std::to_string(bytes.most) +
                              " bytes of activations, but " + std::to_string(limits.most[s]) + " are declared");
    }
  }
  return report;
}

void require_sound(const Schedule& schedule, const ActivationLimits& limits) {
  std::string all;
  for (const std::string& fault : check_schedule(schedule, limits).faults) all += (all.empty() ? "" : "; ") + fault;
  if (!all.empty()) fail_all(ExitCode::input, "the schedule " + schedule.builder + " cannot run: " + all);
}

}  // namespace fourfold
