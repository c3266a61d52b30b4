// Timelines to look at: stages as rows, time to the right.
#pragma once

#include <string>

#include "schedule/timeline.hpp"

namespace fourfold {

// What a tick is: `per_tick` of `unit` ("s", "FLOP").
struct TickUnit {
  double per_tick = 1;
  std::string unit;
};

// A number of the unit with a prefix, three digits: "57 us", "1.23 TFLOP".
std::string in_unit(double ticks, const TickUnit& unit);

// One line a stage: each operation as its name (schedule.hpp) and a filling (F -, B =, I ~, W +); cut to its letter
// where there is no room, as wide as the names need within `most_columns` (20 or more). Then idle share and peak of
// activation sets, a line of times, and a legend.
std::string draw_text(const Schedule& schedule, const Timeline& timeline, const TickUnit& unit, int most_columns);

// A picture that stands by itself: coloured operations with their micro-batch numbers, paler for each further chunk of
// a stage, a time axis, the idle share of each stage and of all, and a legend.
std::string draw_svg(const Schedule& schedule, const Timeline& timeline, const TickUnit& unit);

}  // namespace fourfold
