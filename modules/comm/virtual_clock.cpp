#include "comm/virtual_clock.hpp"

namespace fourfold {

void VirtualClock::start(const Machine& machine) {
  machine_ = machine;
  now_ = 0;
  kernels_cost_ = true;
}

bool VirtualClock::counts(Phase phase) const {
  if (!machine_ || pauses_ > 0) return false;
  return phase != Phase::setup && phase != Phase::checkpoint && phase != Phase::control;
}

Picoseconds VirtualClock::advance_to(Picoseconds end) {
  if (end <= now_) return 0;
  const Picoseconds waited = end - now_;
  now_ = end;
  return waited;
}

}  // namespace fourfold
