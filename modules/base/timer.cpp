#include "base/timer.hpp"

#include <chrono>

#include "base/error.hpp"

namespace fourfold {

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void PhaseTimes::reset() {
  FOURFOLD_ASSERT(open_ == -1, "a phase is open");
  for (Phase& phase : phases_) phase.ns = 0;
  start_ns_ = charged_until_ns_ = now_ns();
}

double PhaseTimes::seconds(std::string_view name) const {
  for (const Phase& phase : phases_) {
    if (phase.name == name) return static_cast<double>(phase.ns) * 1e-9;
  }
  return 0.0;
}

double PhaseTimes::sum() const {
  std::int64_t ns = 0;
  for (const Phase& phase : phases_) ns += phase.ns;
  return static_cast<double>(ns) * 1e-9;
}

double PhaseTimes::wall() const {
  return static_cast<double>(now_ns() - start_ns_) * 1e-9;
}

void PhaseTimes::charge(std::int64_t until_ns) {
  if (open_ >= 0) phases_[static_cast<std::size_t>(open_)].ns += until_ns - charged_until_ns_;
  charged_until_ns_ = until_ns;
}

int PhaseTimes::enter(std::string_view name) {
  charge(now_ns());
  const int outer = open_;
  open_ = 0;
  while (open_ < static_cast<int>(phases_.size()) && phases_[static_cast<std::size_t>(open_)].name != name) ++open_;
  if (open_ == static_cast<int>(phases_.size())) phases_.push_back({std::string(name), 0});
  return outer;
}

void PhaseTimes::leave(int outer) {
  charge(now_ns());
  open_ = outer;
}

}  // namespace fourfold
