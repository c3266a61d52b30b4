// The learning rate of a step.
#pragma once

#include <cstdint>

#include "deck/deck.hpp"

namespace fourfold {

// Steps count from 1. Warm-up: lr x n / warmup for n <= warmup. After it, with p = (n - warmup) / (steps - warmup)
// clamped to 1: cosine final + (lr - final)/2 (1 + cos(pi p)); linear lr + (final - lr) p; constant lr.
double learning_rate(const OptimizerDeck& optimizer, std::int64_t steps, std::int64_t step);

}  // namespace fourfold
