#include "train/console.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/log.hpp"
#include "base/units.hpp"

namespace fourfold {

Console::Console(std::int64_t steps, std::int64_t first_step, double flops_per_token, double ceiling)
    : steps_(steps), first_step_(first_step), flops_per_token_(flops_per_token), ceiling_(ceiling) {}

void Console::step(const StepReport& report) {
  tokens_ += report.tokens;
  seconds_ += report.seconds;
  // The first step of a session warms caches and libraries up: it says little about those to come.
  steps_seen_ += 1;
  const double weight = steps_seen_ <= 2 ? 1.0 : std::max(0.05, 1.0 / (steps_seen_ - 1));
  step_seconds_ += weight * (report.seconds - step_seconds_);
  if (report.step == first_step_ || report.step == steps_ || since_row_.seconds() >= interval()) row(report);
}

double Console::interval() const {
  return std::clamp(run_.seconds() / 100, 1.0, 60.0);
}

void Console::row(const StepReport& report) {
  if (!header_) {
    log_info(fmt::format("{:>9} {:>10} {:>10} {:>9} {:>12} {:>8} {:>8}", "step", "loss", "grad norm", "rate",
                         "tokens/s", "ceiling", "left"));
    header_ = true;
  }
  const double rate = static_cast<double>(tokens_) / seconds_;
  const std::string share =
      ceiling_ > 0 ? fmt::format("{:.0f} %", 100 * rate * flops_per_token_ / ceiling_) : std::string("-");
  const double done = static_cast<double>(report.step - first_step_ + 1);
  const double left = static_cast<double>(steps_ - report.step) * (step_seconds_ + pause_seconds_ / done);
  log_info(fmt::format("{:>9} {:>10.4f} {:>10.4f} {:>9.2e} {:>12} {:>8} {:>8}", report.step, report.loss,
                       report.grad_norm, report.learning_rate, format_thousands(std::llround(rate)), share,
                       format_duration(left)));
  tokens_ = 0;
  seconds_ = 0;
  since_row_.restart();
}

void Console::evaluating(std::int64_t step, std::int64_t batches_done, std::int64_t batches) {
  if (batches_done == 1) since_row_.restart();
  if (since_row_.seconds() < std::max(interval(), 5.0) || batches_done == batches) return;
  log_info(
      fmt::format("{:>9} evaluation: batch {} of {}", step, format_thousands(batches_done), format_thousands(batches)));
  since_row_.restart();
}

void Console::evaluation(std::int64_t step, const EvalReport& report) {
  const std::string bits = report.bits_per_byte ? fmt::format(", {:.4f} bits per byte", *report.bits_per_byte) : "";
  log_info(fmt::format("{:>9} evaluation: loss {:.4f}{} on {} samples ({})", step, report.loss, bits,
                       format_thousands(report.samples), format_duration(report.seconds)));
  pause_seconds_ += report.seconds;
}

void Console::migration(const MigrationReport& report) {
  std::size_t swaps = 0;
  double before = 1, after = 1;
  for (const LayerMigration& layer : report.layers) {
    swaps += layer.swaps.size();
    before = std::max(before, layer.before);
    after = std::max(after, layer.after);
  }
  if (swaps == 0) return;
  log_info(
      fmt::format("{:>9} experts: {} swaps between ranks, a rank's largest load over the mean {:.2f} to {:.2f} ({})",
                  report.step, swaps, before, after, format_duration(report.seconds)));
  pause_seconds_ += report.seconds;
}

void Console::checkpoint(std::int64_t step, const checkpoint::SaveReport& report) {
  const std::string waited = report.blocked_seconds < report.seconds
                                 ? fmt::format("; training waited {}", format_duration(report.blocked_seconds))
                                 : std::string();
  log_info(fmt::format("{:>9} checkpoint: {}B in {}, written at {}B/s, fsync {}{}", step,
                       format_count(static_cast<double>(report.bytes)), format_duration(report.seconds),
                       format_count(1e9 * report.gigabytes_per_second()), format_duration(report.fsync_seconds),
                       waited));
  pause_seconds_ += report.blocked_seconds;
}

}  // namespace fourfold
