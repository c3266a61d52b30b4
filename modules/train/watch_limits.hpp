// How long a phase of the loop may go without a movement.
#pragma once

#include <string_view>

#include "deck/deck.hpp"

namespace fourfold {

// `phase`: as set_progress names it. Seconds; 0: for ever.
double limit_of(const WatchdogDeck& limits, std::string_view phase);

}  // namespace fourfold
