#include "schedule/timeline.hpp"

#include <algorithm>
#include <optional>

#include "base/error.hpp"

namespace fourfold {
namespace {

constexpr double kMostTicks = 4611686018427387904.0;  // 2^62

class Clock {
 public:
  Clock(const Schedule& schedule, const Durations& durations)
      : schedule_(schedule),
        durations_(durations),
        arrivals_(2 * static_cast<std::size_t>(schedule.chunks()) * static_cast<std::size_t>(schedule.micro_batches)),
        next_(schedule.lists.size(), 0),
        now_(schedule.lists.size(), 0) {
    timeline_.stages.resize(schedule.lists.size());
  }

  Timeline run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int stage = 0; stage < schedule_.stages; ++stage) {
        while (next_[at(stage)] < schedule_.list(stage).size() && advance(stage)) moved = true;
      }
    }
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      FOURFOLD_ASSERT(next_[at(stage)] == schedule_.list(stage).size(), "a schedule that stands still was not checked");
      timeline_.makespan = std::max(timeline_.makespan, now_[at(stage)]);
    }
    return std::move(timeline_);
  }

 private:
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }

  std::optional<std::int64_t>& arrival(const StageOperation& end) {
    return arrivals_[static_cast<std::size_t>(transfer_id(schedule_, end))];
  }

  std::int64_t latency(const StageOperation& send) const {
    const int boundary = send.kind == OperationKind::send_activation ? send.chunk : send.chunk - 1;
    return durations_.latency.empty() ? 0 : durations_.latency[at(boundary)];
  }

  std::int64_t duration(const StageOperation& operation) const {
    const PassTimes& times = durations_.chunks[at(operation.chunk)];
    switch (operation.kind) {
      case OperationKind::forward:
        return times.forward;
      case OperationKind::backward_input:
        return times.input;
      case OperationKind::backward_weight:
        return times.weight;
      default:
        return times.backward();
    }
  }

  // When what the operation takes from another stage is there; nothing if it is not sent yet.
  std::optional<std::int64_t> input_time(const StageOperation& operation) {
    if (operation.kind == OperationKind::forward && schedule_.crosses(operation.chunk - 1)) {
      return arrival({OperationKind::receive_activation, operation.chunk, operation.micro_batch, -1});
    }
    if (makes_gradient(operation.kind) && schedule_.crosses(operation.chunk)) {
      return arrival({OperationKind::receive_gradient, operation.chunk, operation.micro_batch, -1});
    }
    return 0;
  }

  // The stage's next operation, if it can run.
  bool advance(int stage) {
    const StageOperation& operation = schedule_.list(stage)[next_[at(stage)]];
    std::int64_t& now = now_[at(stage)];
    if (is_send(operation.kind)) {
      arrival(operation) = now + latency(operation);
    } else if (is_compute(operation.kind)) {
      const std::optional<std::int64_t> input = input_time(operation);
      if (!input) return false;
      const std::int64_t begin = std::max(now, *input);
      now = begin + duration(operation);
      timeline_.stages[at(stage)].push_back({next_[at(stage)], begin, now});
    }
    ++next_[at(stage)];
    return true;
  }

  const Schedule& schedule_;
  const Durations& durations_;
  std::vector<std::optional<std::int64_t>> arrivals_;  // by transfer id
  std::vector<std::size_t> next_;                      // by stage
  std::vector<std::int64_t> now_;
  Timeline timeline_;
};

}  // namespace

Durations equal_durations(const Schedule& schedule, const PassTimes& times) {
  return {std::vector<PassTimes>(schedule.stage_of_chunk.size(), times), {}};
}

std::int64_t Timeline::busy(int stage) const {
  std::int64_t ticks = 0;
  for (const Span& span : stages[static_cast<std::size_t>(stage)]) ticks += span.end - span.begin;
  return ticks;
}

double Timeline::idle_share() const {
  if (makespan == 0) return 0;
  double busy_ticks = 0;
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    busy_ticks += static_cast<double>(busy(static_cast<int>(stage)));
  }
  return 1 - busy_ticks / (static_cast<double>(makespan) * static_cast<double>(stages.size()));
}

Timeline evaluate(const Schedule& schedule, const Durations& durations) {
  FOURFOLD_ASSERT(durations.chunks.size() == schedule.stage_of_chunk.size(), "durations for every chunk");
  FOURFOLD_ASSERT(durations.latency.empty() || durations.latency.size() + 1 == schedule.stage_of_chunk.size(),
                  "a latency for every boundary");
  double longest = 0;  // one operation after another, none beside another
  for (const PassTimes& times : durations.chunks) {
    longest +=
        static_cast<double>(times.forward) + static_cast<double>(times.input) + static_cast<double>(times.weight);
  }
  for (const std::int64_t latency : durations.latency) longest += 2 * static_cast<double>(latency);
  if (longest * schedule.micro_batches > kMostTicks) {
    fail_all(ExitCode::input, "the schedule's operations take more than 2^62 ticks together; give smaller times");
  }
  return Clock(schedule, durations).run();
}

}  // namespace fourfold
