// Samples that are functions of (seed, sample number): no files, any grid.
#pragma once

#include <memory>

#include "data/batch.hpp"
#include "deck/deck.hpp"
#include "grid/partition.hpp"

namespace fourfold {

// The samples numbered `range` of the deck's synthetic data.
//   dyadic, mlp or residual           inputs and outputs in {-1, 0, 1}, each as likely; with cross entropy a class
//   dyadic, embedding or transformer  ids in [0, vocab), each as likely; targets are the next ids. Sequences of
//                                     model.sequence tokens (embedding without one: 1)
//   teacher, mlp or residual          inputs standard normal; outputs A tanh(B x) of a fixed random net of 32 hidden
//                                     units; with cross entropy the class is its largest output
// Errors (Error, input): teacher with a token model.
std::unique_ptr<Samples> make_synthetic(const Deck& deck, Range range);

}  // namespace fourfold
