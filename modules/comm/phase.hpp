// What a movement is for; the ledger and the trace are kept per phase.
#pragma once

#include <string_view>
#include "comm/code_place.hpp"

namespace fourfold {

enum class Phase : int { setup, forward, backward, gradient, update, evaluate, checkpoint, control };
inline constexpr int kPhases = 8;
std::string_view phase_name(Phase phase);

// What a movement is for and which line asks for it: made of a Phase alone it names the line on which it is made, that
// of the call.
struct CallSite {
  // NOLINTNEXTLINE(google-explicit-constructor): that is its use
  CallSite(Phase what, CodePlace place = CodePlace::current()) : phase(what), where(place) {}
  Phase phase;
  CodePlace where;
};

}  // namespace fourfold
