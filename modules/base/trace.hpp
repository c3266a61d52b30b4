// Where the time goes. Two records: the seconds of each phase of a run, always kept, which add up to the whole; and,
// where a capacity is given, every operation (start, end, bytes, tag) for Perfetto and chrome://tracing.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/timer.hpp"

namespace fourfold {

// What a rank does, at every moment one of these. `start`: from the beginning to the first step; `between`: what has no
// phase of its own (console, metrics, votes on stopping).
enum class WorkPhase : int {
  start,
  input,
  forward,
  backward,
  gradient_sum,
  norm,
  update,
  evaluation,
  checkpoint,
  checks,
  between
};
inline constexpr int kWorkPhases = 11;
std::string_view work_phase_name(WorkPhase phase);

struct TraceEvent {
  std::string name;                       // "all_reduce", "layers.0"
  std::string category;                   // the phase
  std::int64_t start_ns = 0, end_ns = 0;  // now_ns()
  std::int64_t bytes = 0;                 // moved or written; 0 where it means nothing
  std::int64_t tag = 0;                   // step, micro-batch: what the category says
  std::string track;                      // a line of its own in the picture ("row"); "": the rank's work
  bool in_flight = false;  // runs beside others, from its start to its end; else the rank does nothing else meanwhile
};

class Trace {
 public:
  // At most `capacity` events are kept; later ones are counted in dropped(). 0: only phases are timed, and a scope
  // without one reads no clock and copies nothing.
  // `since_ns`: when its first phase began.
  explicit Trace(std::size_t capacity = 0, std::int64_t since_ns = now_ns())
      : capacity_(capacity), origin_ns_(now_ns()), since_ns_(since_ns) {}

  bool on() const { return capacity_ > 0; }
  // From now on; returns the phase until now. A new trace is in `start`.
  WorkPhase enter(WorkPhase phase);
  // Seconds of every phase until now; their sum is the trace's age.
  std::array<double, kWorkPhases> phase_seconds() const;
  // Times are written relative to this moment: called on all ranks after one barrier it lines their clocks up.
  void set_origin() { origin_ns_ = now_ns(); }
  void record(TraceEvent event);

  const std::vector<TraceEvent>& events() const { return events_; }
  std::int64_t dropped() const { return dropped_; }

  // This rank's events as JSON objects with commas between, one a line; process id = rank. Text, so that ranks can send
  // theirs to the one that calls write_trace.
  std::string json_events(int rank) const;

 private:
  std::size_t capacity_;
  std::int64_t origin_ns_;
  WorkPhase phase_ = WorkPhase::start;
  std::int64_t since_ns_;  // when phase_ began
  std::array<std::int64_t, kWorkPhases> phase_ns_{};
  std::int64_t dropped_ = 0;
  std::vector<TraceEvent> events_;
};

// Called with the name of every scope as it begins, and as it ends: how other tools (Kokkos') see the same stretches.
// Null: nobody. Set before scopes exist.
struct RegionHooks {
  void (*push)(const std::string& name) = nullptr;
  void (*pop)() = nullptr;
};
void set_region_hooks(RegionHooks hooks);
const RegionHooks& region_hooks();

// Records the time between its construction and its end.
class TraceScope {
 public:
  TraceScope(Trace& trace, std::string_view name, std::string_view category, std::int64_t bytes = 0,
             std::int64_t tag = 0)
      : trace_(trace) {
    if (region_hooks().push != nullptr) region_hooks().push(std::string(name));
    if (!trace.on()) return;
    event_ = TraceEvent{std::string(name), std::string(category), now_ns(), 0, bytes, tag, "", false};
  }
  ~TraceScope() {
    if (region_hooks().pop != nullptr) region_hooks().pop();
    if (!trace_.on()) return;
    event_.end_ns = now_ns();
    trace_.record(std::move(event_));
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  Trace& trace_;
  TraceEvent event_;
};

// The same, and the time is the phase's.
class PhaseScope {
 public:
  PhaseScope(Trace& trace, WorkPhase phase, std::int64_t tag = 0)
      : trace_(trace),
        scope_(trace, work_phase_name(phase), work_phase_name(phase), 0, tag),
        before_(trace.enter(phase)) {}
  ~PhaseScope() { trace_.enter(before_); }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  Trace& trace_;
  TraceScope scope_;
  WorkPhase before_;
};

// Writes a Chrome trace of every rank's json_events. Errors: Error (storage, one rank) when the file cannot be written.
void write_trace(const std::string& path, const std::vector<std::string>& events_of_rank);

}  // namespace fourfold
