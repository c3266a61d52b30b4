#include "base/trace.hpp"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.hpp"

namespace fourfold {

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
  for (const TraceEvent& event : events_) {
    text += ",\n" + line({{"name", event.name},
                          {"cat", event.category},
                          {"ph", "X"},
                          {"pid", rank},
                          {"tid", 0},
                          {"ts", microseconds(event.start_ns - origin_ns_)},
                          {"dur", microseconds(event.end_ns - event.start_ns)},
                          {"args", {{"bytes", event.bytes}, {"tag", event.tag}}}});
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
