#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "schedule/drawing.hpp"
#include "schedule/rules.hpp"

namespace fourfold {
namespace {

constexpr int kFewestColumns = 20;

char filling(OperationKind kind) {
  switch (kind) {
    case OperationKind::forward:
      return '-';
    case OperationKind::backward_input:
      return '~';
    case OperationKind::backward_weight:
      return '+';
    default:
      return '=';
  }
}

// So many columns that every operation's name fits, within the limits.
int columns_of(const Schedule& schedule, const Timeline& timeline, int most) {
  double columns = kFewestColumns;
  for (std::size_t s = 0; s < timeline.stages.size(); ++s) {
    for (const Span& span : timeline.stages[s]) {
      if (span.end == span.begin) continue;
      const auto length = static_cast<double>(name_of(schedule, schedule.lists[s][span.operation]).size());
      columns = std::max(columns, std::ceil(length * static_cast<double>(timeline.makespan) /
                                            static_cast<double>(span.end - span.begin)));
      if (columns > most) return most;
    }
  }
  return static_cast<int>(columns);
}

// Of the operations that there are.
std::string legend(const Schedule& schedule) {
  struct Entry {
    OperationKind kind;
    const char* name;
  };
  constexpr Entry kEntries[] = {{OperationKind::forward, "F forward"},
                                {OperationKind::backward, "B backward"},
                                {OperationKind::backward_input, "I input gradients"},
                                {OperationKind::backward_weight, "W weight gradients"}};
  std::string text;
  for (const Entry& entry : kEntries) {
    const bool used = std::any_of(schedule.lists.begin(), schedule.lists.end(), [&](const auto& list) {
      return std::any_of(list.begin(), list.end(), [&](const StageOperation& o) { return o.kind == entry.kind; });
    });
    if (used) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", entry.name, std::string(2, filling(entry.kind)));
  }
  return "legend  " + text + "; the number is the micro-batch (none: no room)" +
         (schedule.chunks() > schedule.stages ? ", behind the point the chunk of the stage\n" : "\n");
}

}  // namespace

std::string in_unit(double ticks, const TickUnit& unit) {
  static constexpr std::array<const char*, 11> kPrefixes = {"p", "n", "u", "m", "", "k", "M", "G", "T", "P", "E"};
  double value = ticks * unit.per_tick;
  std::size_t prefix = 4;
  while (value >= 999.5 && prefix + 1 < kPrefixes.size()) value /= 1000, ++prefix;
  while (value != 0 && value < 0.9995 && prefix > 0) value *= 1000, --prefix;
  return fmt::format("{:.3g} {}{}", value, kPrefixes[prefix], unit.unit);
}

std::string draw_text(const Schedule& schedule, const Timeline& timeline, const TickUnit& unit, int most_columns) {
  const int columns = columns_of(schedule, timeline, std::max(most_columns, kFewestColumns));
  const double makespan = static_cast<double>(std::max<std::int64_t>(1, timeline.makespan));
  const auto column = [&](std::int64_t tick) {
    return static_cast<std::size_t>(static_cast<double>(tick) * columns / makespan + 1e-9);
  };
  const std::size_t label = fmt::format("stage {}", schedule.stages - 1).size();
  std::string text;
  for (int stage = 0; stage < schedule.stages; ++stage) {
    std::string row(static_cast<std::size_t>(columns), ' ');
    for (const Span& span : timeline.stages[static_cast<std::size_t>(stage)]) {
      const StageOperation& operation = schedule.list(stage)[span.operation];
      const std::size_t begin = column(span.begin), width = column(span.end) - begin;
      std::string cell = name_of(schedule, operation);
      if (cell.size() > width) cell.resize(1);
      cell.resize(width, filling(operation.kind));
      row.replace(begin, width, cell);
    }
    text += fmt::format("{:<{}} |{}| idle {:4.1f} %, {} in flight\n", fmt::format("stage {}", stage), label, row,
                        100 * (1 - static_cast<double>(timeline.busy(stage)) / makespan),
                        peak_sets(schedule.list(stage)).most);
  }
  const std::string end = in_unit(static_cast<double>(timeline.makespan), unit);
  const std::string half = in_unit(static_cast<double>(timeline.makespan) / 2, unit);
  const auto middle = static_cast<std::size_t>(columns) / 2;
  std::string axis = "0";
  axis.resize(middle - half.size() / 2, ' ');
  axis += half;
  axis.resize(std::max(axis.size() + 1, static_cast<std::size_t>(columns) - end.size() + 1), ' ');
  text += fmt::format("{:<{}} {}{}   idle {:.1f} % of all\n", "time", label, axis, end, 100 * timeline.idle_share());
  return text + legend(schedule);
}

}  // namespace fourfold
