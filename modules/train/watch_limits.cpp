#include "train/watch_limits.hpp"

namespace fourfold {

double limit_of(const WatchdogDeck& limits, std::string_view phase) {
  if (phase == "evaluation" || phase == "generation") return limits.evaluation;
  if (phase == "checkpoint" || phase == "record" || phase == "trace") return limits.checkpoint;
  if (phase == "start" || phase == "restart") return limits.start;
  return limits.step;
}

}  // namespace fourfold
