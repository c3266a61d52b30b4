// Training that is watched from outside: studies read ledger and virtual clock around each step.
#pragma once

#include <cstdint>
#include <functional>

#include "train/loop.hpp"

namespace fourfold {

// Called on every rank as a step begins (its number, true) and after it has ended (its number, false).
using AroundStep = std::function<void(std::int64_t step, bool begins)>;

// As train().
template <class T>
ExitCode train_watched(const Deck& deck, const GridComms& comms, Pool& pool, const TrainOptions& options,
                       const AroundStep& around);

}  // namespace fourfold
