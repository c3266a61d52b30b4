#include "train/traffic.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "base/units.hpp"
#include "comm/agree.hpp"
#include "comm/collectives.hpp"
#include "comm/ledger.hpp"
#include "comm/virtual_clock.hpp"

namespace fourfold {

namespace {

constexpr double kPicosecond = 1e-12;

// A line an axis; names of groups hold no blanks.
std::string ledger_text(const CommLedger& ledger) {
  std::map<std::string, CommSums> groups;
  for (const auto& [key, sums] : ledger.sums()) groups[key.group] += sums;
  std::string text;
  for (const auto& [name, sums] : groups) {
    text += fmt::format("{} {} {} {} {} {} {}\n", name, sums.calls, sums.messages,
                        sums.ring_bytes - sums.bytes_between_nodes, sums.bytes_between_nodes, sums.seconds,
                        sums.virtual_time);
  }
  return text;
}

}  // namespace

TrafficReport traffic_report(const Communicator& world) {
  TrafficReport report;
  const std::vector<std::string> texts = gather_strings(world, ledger_text(world.ledger()));
  if (world.clock().emulates()) {
    std::int64_t latest = world.clock().now();
    all_reduce_max<std::int64_t>(world, {&latest, 1}, Phase::control);
    report.makespan = latest;
  }
  std::map<std::string, AxisTraffic> axes;
  for (const std::string& text : texts) {
    std::istringstream lines(text);
    AxisTraffic mine;
    double seconds = 0;
    Picoseconds virtual_time = 0;
    while (lines >> mine.axis >> mine.operations >> mine.messages >> mine.bytes_inside >> mine.bytes_between >>
           seconds >> virtual_time) {
      AxisTraffic& all = axes[mine.axis];
      all.axis = mine.axis;
      all.operations += mine.operations;
      all.messages += mine.messages;
      all.bytes_inside += mine.bytes_inside;
      all.bytes_between += mine.bytes_between;
      all.exposed_mean += seconds / world.size();
      all.exposed_largest = std::max(all.exposed_largest, seconds);
      const double virtual_seconds = static_cast<double>(virtual_time) * kPicosecond;
      all.virtual_mean += virtual_seconds / world.size();
      all.virtual_largest = std::max(all.virtual_largest, virtual_seconds);
    }
  }
  for (auto& [name, traffic] : axes) report.axes.push_back(std::move(traffic));
  return report;
}

std::string traffic_table(const TrafficReport& report) {
  const bool emulated = report.makespan.has_value();
  std::string text = fmt::format("{:<16} {:>11} {:>11} {:>13} {:>13} {:>10} {:>10}", "axis", "operations", "messages",
                                 "inside nodes", "between nodes", "exposed", "largest");
  if (emulated) text += fmt::format(" {:>12} {:>12}", "virtual", "largest");
  for (const AxisTraffic& axis : report.axes) {
    text += fmt::format("\n{:<16} {:>11} {:>11} {:>12}B {:>12}B {:>9.3f}s {:>9.3f}s", axis.axis,
                        format_thousands(axis.operations), format_thousands(axis.messages),
                        format_count(static_cast<double>(axis.bytes_inside)),
                        format_count(static_cast<double>(axis.bytes_between)), axis.exposed_mean, axis.exposed_largest);
    if (emulated) text += fmt::format(" {:>11.4g}s {:>11.4g}s", axis.virtual_mean, axis.virtual_largest);
  }
  return text;
}

}  // namespace fourfold
