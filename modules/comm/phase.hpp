// What a movement is for; the ledger and the trace are kept per phase.
#pragma once

#include <string_view>

namespace fourfold {

enum class Phase : int { setup, forward, backward, gradient, update, evaluate, checkpoint, control };
inline constexpr int kPhases = 8;
std::string_view phase_name(Phase phase);

}  // namespace fourfold
