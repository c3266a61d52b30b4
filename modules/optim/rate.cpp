#include "optim/rate.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fourfold {

double learning_rate(const OptimizerDeck& optimizer, std::int64_t steps, std::int64_t step) {
  const RateDeck& schedule = optimizer.schedule;
  if (step <= schedule.warmup) {
    return optimizer.lr * static_cast<double>(step) / static_cast<double>(schedule.warmup);
  }
  if (schedule.kind == ScheduleKind::constant) return optimizer.lr;
  const auto after = static_cast<double>(step - schedule.warmup);
  const double length = static_cast<double>(std::max<std::int64_t>(steps - schedule.warmup, 1));
  const double progress = std::min(1.0, after / length);
  if (schedule.kind == ScheduleKind::linear) return optimizer.lr + (schedule.final - optimizer.lr) * progress;
  return schedule.final + 0.5 * (optimizer.lr - schedule.final) * (1.0 + std::cos(std::numbers::pi * progress));
}

}  // namespace fourfold
