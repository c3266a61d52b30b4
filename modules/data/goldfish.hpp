// Goldfish loss (Hans et al., "Be like a goldfish, don't memorize!", 2024): a token leaves the loss where a hash of the
// tokens before it says so, which makes long passages hard to learn by heart. A passage that comes again loses the same
// tokens, on any grid, in any run.
#pragma once

#include "data/batch.hpp"
#include "deck/deck.hpp"

namespace fourfold {

// The target at row t of a sequence becomes -1 where the hash of the `h` ids up to t is 0 modulo `k`; the first h - 1
// rows, whose past is shorter, keep theirs. k = 0: nothing is dropped. O(B T h).
void drop_targets(const GoldfishDeck& goldfish, Batch& batch);

}  // namespace fourfold
