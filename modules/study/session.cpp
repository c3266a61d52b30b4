#include "study/session.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "comm/agree.hpp"
#include "comm/collectives.hpp"
#include "comm/ledger.hpp"
#include "comm/virtual_clock.hpp"

namespace fourfold::study {

namespace {

using Json = nlohmann::ordered_json;

bool of_a_step(Phase phase) {
  return phase == Phase::forward || phase == Phase::backward || phase == Phase::gradient || phase == Phase::update;
}

}  // namespace

std::string session_json(const SessionReport& session) {
  Json json{{"first_step", session.first_step}, {"steps", session.steps},           {"peaks", session.peaks},
            {"peak_total", session.peak_total}, {"virtual", session.virtual_steps}, {"axes", Json::object()}};
  for (const auto& [name, axis] : session.axes) {
    json["axes"][name] = {axis.messages, axis.bytes, axis.bytes_between, axis.exposed, axis.virtual_time};
  }
  return json.dump();
}

SessionReport read_session(const std::string& text) {
  const Json json = Json::parse(text);
  SessionReport session;
  session.first_step = json.at("first_step").get<std::int64_t>();
  session.steps = json.at("steps").get<std::int64_t>();
  session.peaks = json.at("peaks").get<std::array<std::int64_t, kMemoryTags>>();
  session.peak_total = json.at("peak_total").get<std::int64_t>();
  session.virtual_steps = json.at("virtual").get<std::vector<Picoseconds>>();
  for (const auto& [name, axis] : json.at("axes").items()) {
    session.axes[name] = {axis[0].get<std::int64_t>(), axis[1].get<std::int64_t>(), axis[2].get<std::int64_t>(),
                          axis[3].get<double>(), axis[4].get<double>()};
  }
  return session;
}

std::map<std::string, StepWatch::Sums> StepWatch::ledger_sums() const {
  std::map<std::string, Sums> groups;
  for (const auto& [key, sums] : group_.ledger().sums()) {
    if (!of_a_step(key.phase)) continue;
    Sums& group = groups[key.group];
    group.messages += sums.messages;
    group.bytes += sums.ring_bytes;
    group.bytes_between += sums.bytes_between_nodes;
    group.seconds += sums.seconds;
    group.virtual_time += sums.virtual_time;
  }
  return groups;
}

void StepWatch::around(std::int64_t step, bool begins) {
  if (begins) {
    before_ = ledger_sums();
    if (first_step_ == 0) {
      first_step_ = step;
      clock_before_ = group_.clock().now();
    }
    return;
  }
  ++steps_;
  last_.clear();
  for (const auto& [name, now] : ledger_sums()) {
    const Sums& before = before_[name];
    Sums step_sums{now.messages - before.messages, now.bytes - before.bytes, now.bytes_between - before.bytes_between,
                   now.seconds - before.seconds, now.virtual_time - before.virtual_time};
    Sums& all = all_[name];
    all.seconds += step_sums.seconds;
    all.virtual_time += step_sums.virtual_time;
    last_[name] = step_sums;
  }
  if (group_.clock().emulates()) clock_ends_.push_back(group_.clock().now() - clock_before_);
}

SessionReport StepWatch::report(const MemoryLedger& memory) const {
  SessionReport report;
  report.first_step = first_step_;
  report.steps = steps_;
  std::array<std::int64_t, kMemoryTags + 1> peaks{};
  for (int tag = 0; tag < kMemoryTags; ++tag) {
    peaks[static_cast<std::size_t>(tag)] = memory.peak(static_cast<MemoryTag>(tag));
  }
  peaks.back() = memory.peak_total();
  all_reduce_max<std::int64_t>(group_, peaks, Phase::control);
  std::copy(peaks.begin(), peaks.end() - 1, report.peaks.begin());
  report.peak_total = peaks.back();
  std::vector<Picoseconds> ends = clock_ends_;
  all_reduce_max<std::int64_t>(group_, ends, Phase::control);
  for (std::size_t i = 0; i < ends.size(); ++i) report.virtual_steps.push_back(ends[i] - (i > 0 ? ends[i - 1] : 0));

  std::string mine;  // names of groups hold no blanks
  for (const auto& [name, last] : last_) {
    const Sums& all = all_.at(name);
    mine += fmt::format("{} {} {} {} {} {}\n", name, last.messages, last.bytes, last.bytes_between, all.seconds,
                        all.virtual_time);
  }
  for (const std::string& text : gather_strings(group_, mine)) {
    std::istringstream lines(text);
    std::string name;
    Sums sums;
    while (lines >> name >> sums.messages >> sums.bytes >> sums.bytes_between >> sums.seconds >> sums.virtual_time) {
      AxisUse& axis = report.axes[name];
      axis.messages += sums.messages;
      axis.bytes += sums.bytes;
      axis.bytes_between += sums.bytes_between;
      axis.exposed += sums.seconds / group_.size();
      axis.virtual_time += static_cast<double>(sums.virtual_time) * 1e-12 / group_.size();
    }
  }
  return report;
}

}  // namespace fourfold::study
