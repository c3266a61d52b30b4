#include "train/phases.hpp"

#include <fmt/format.h>

#include <numeric>

#include "comm/collectives.hpp"

namespace fourfold {

PhaseReport phase_report(const Communicator& world, const Trace& trace) {
  PhaseReport report;
  report.mean = report.largest = trace.phase_seconds();
  report.whole = std::accumulate(report.mean.begin(), report.mean.end(), 0.0);
  all_reduce_max<double>(world, {&report.whole, 1}, Phase::control);
  all_reduce_max<double>(world, report.largest, Phase::control);
  all_reduce_sum<double>(world, report.mean, Summation::fast, Phase::control);
  for (double& seconds : report.mean) seconds /= world.size();
  return report;
}

std::string phase_table(const PhaseReport& report) {
  std::string text = fmt::format("{:<14} {:>10} {:>7} {:>10}", "phase", "mean", "share", "largest");
  for (int i = 0; i < kWorkPhases; ++i) {
    const auto phase = static_cast<std::size_t>(i);
    if (report.largest[phase] == 0) continue;
    text += fmt::format("\n{:<14} {:>9.3f}s {:>5.1f} % {:>9.3f}s", work_phase_name(static_cast<WorkPhase>(i)),
                        report.mean[phase], 100 * report.mean[phase] / report.whole, report.largest[phase]);
  }
  return text;
}

}  // namespace fourfold
