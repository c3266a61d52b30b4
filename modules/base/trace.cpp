#include "base/trace.hpp"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.hpp"

namespace fourfold {

namespace {
RegionHooks hooks;
}  // namespace

void set_region_hooks(RegionHooks given) {
  hooks = given;
}

const RegionHooks& region_hooks() {
  return hooks;
}

std::string_view work_phase_name(WorkPhase phase) {
  constexpr std::array<std::string_view, kWorkPhases> kNames = {"start",        "input",  "forward", "backward",
                                                                "gradient sum", "norm",   "update",  "evaluation",
                                                                "checkpoint",   "checks", "between"};
  return kNames[static_cast<std::size_t>(phase)];
}

WorkPhase Trace::enter(WorkPhase phase) {
  const std::int64_t now = now_ns();
  phase_ns_[static_cast<std::size_t>(phase_)] += now - since_ns_;
  since_ns_ = now;
  return std::exchange(phase_, phase);
}

std::array<double, kWorkPhases> Trace::phase_seconds() const {
  std::array<double, kWorkPhases> seconds{};
  for (std::size_t i = 0; i < seconds.size(); ++i) seconds[i] = static_cast<double>(phase_ns_[i]) * 1e-9;
  seconds[static_cast<std::size_t>(phase_)] += static_cast<double>(now_ns() - since_ns_) * 1e-9;
  return seconds;
}

void Trace::record(TraceEvent event) {
  if (events_.size() < capacity_) {
    events_.push_back(std::move(event));
  } else {
    ++dropped_;
  }
}

std::string Trace::json_events(int rank) const {
  using nlohmann::json;
  const auto line = [](const json& object) {
    // A name that is no UTF-8 must not lose the whole trace.
    return object.dump(-1, ' ', false, json::error_handler_t::replace);
  };
  const auto microseconds = [](std::int64_t ns) { return static_cast<double>(ns) * 1e-3; };
  std::string text = line({{"name", "process_name"},
                           {"ph", "M"},
                           {"pid", rank},
                           {"args", {{"name", "rank " + std::to_string(rank)}, {"dropped", dropped_}}}});
  std::map<std::string, int> tracks;  // to numbers of threads
  const auto thread = [&](const std::string& track) {
    const auto [entry, fresh] = tracks.emplace(track, static_cast<int>(tracks.size()));
    if (fresh) {
      text += ",\n" + line({{"name", "thread_name"},
                            {"ph", "M"},
                            {"pid", rank},
                            {"tid", entry->second},
                            {"args", {{"name", track.empty() ? "work" : track}}}});
    }
    return entry->second;
  };
  thread("");
  int flights = 0;
  for (const TraceEvent& event : events_) {
    json object = {{"name", event.name},
                   {"cat", event.category},
                   {"pid", rank},
                   {"tid", thread(event.track)},
                   {"ts", microseconds(event.start_ns - origin_ns_)},
                   {"args", {{"bytes", event.bytes}, {"tag", event.tag}}}};
    if (event.in_flight) {
      object["ph"] = "b";
      object["id"] = std::to_string(rank) + "." + std::to_string(flights++);
      object["name"] = event.track + " in flight: " + event.name;
      text += ",\n" + line(object);
      object["ph"] = "e";
      object["ts"] = microseconds(event.end_ns - origin_ns_);
    } else {
      object["ph"] = "X";
      object["dur"] = microseconds(event.end_ns - event.start_ns);
    }
    text += ",\n" + line(object);
  }
  return text;
}

void write_trace(const std::string& path, const std::vector<std::string>& events_of_rank) {
  std::ofstream file(path);
  file << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  const char* separator = "";
  for (const std::string& events : events_of_rank) {
    if (events.empty()) continue;
    file << separator << events;
    separator = ",\n";
  }
  file << "\n]}\n";
  file.close();
  if (!file) fail_one(ExitCode::storage, "cannot write the trace " + path + ": " + std::strerror(errno));
}

}  // namespace fourfold
