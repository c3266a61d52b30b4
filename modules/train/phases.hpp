// Where a session's time went, by phase (base/trace.hpp).
#pragma once

#include <array>
#include <string>

#include "base/trace.hpp"
#include "comm/communicator.hpp"

namespace fourfold {

struct PhaseReport {
  double whole = 0;                           // seconds since the trace began, of the rank with the most
  std::array<double, kWorkPhases> mean{};     // over the ranks
  std::array<double, kWorkPhases> largest{};  // of the ranks
};

// Collective.
PhaseReport phase_report(const Communicator& world, const Trace& trace);

// One aligned line a phase that took any time: its mean, the share of the whole, the largest.
std::string phase_table(const PhaseReport& report);

}  // namespace fourfold
