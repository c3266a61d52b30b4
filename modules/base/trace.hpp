// The per-operation record (start, end, bytes, tag), for Perfetto and chrome://tracing. Off unless a capacity is given:
// a scope on a trace that is off reads no clock and copies nothing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/timer.hpp"

namespace fourfold {

struct TraceEvent {
  std::string name;                       // "all_reduce", "blocks.0.attention"
  std::string category;                   // "comm", "forward", ...
  std::int64_t start_ns = 0, end_ns = 0;  // now_ns()
  std::int64_t bytes = 0;                 // moved or written; 0 where it means nothing
  std::int64_t tag = 0;                   // step, micro-batch: what the category says
};

class Trace {
 public:
  // At most `capacity` events are kept; later ones are counted in dropped(). 0: off.
  explicit Trace(std::size_t capacity = 0) : capacity_(capacity), origin_ns_(now_ns()) {}

  bool on() const { return capacity_ > 0; }
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
  std::int64_t dropped_ = 0;
  std::vector<TraceEvent> events_;
};

// Records the time between its construction and its end.
class TraceScope {
 public:
  TraceScope(Trace& trace, std::string_view name, std::string_view category, std::int64_t bytes = 0,
             std::int64_t tag = 0)
      : trace_(trace) {
    if (!trace.on()) return;
    event_ = TraceEvent{std::string(name), std::string(category), now_ns(), 0, bytes, tag};
  }
  ~TraceScope() {
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

// Writes a Chrome trace of every rank's json_events. Errors: Error (storage, one rank) when the file cannot be written.
void write_trace(const std::string& path, const std::vector<std::string>& events_of_rank);

}  // namespace fourfold
