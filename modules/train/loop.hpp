// The training loop: restart, steps, evaluations, checkpoints, and how it ends.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.hpp"
#include "comm/grid_comms.hpp"
#include "deck/deck.hpp"
#include "tensor/tensor.hpp"

namespace fourfold {

struct TrainOptions {
  std::int64_t stop_at_step = 0;  // save after this step and leave with ExitCode::again; 0: never
  bool new_schedule = false;      // go on although the checkpoint's learning-rate schedule is another one
  bool new_data = false;          // ... although its data are others
  bool calibrate = false;         // measure what the machine could do, to compare speeds with
  std::int64_t started_ns = 0;    // when the program did (now_ns()), so that its phases hold the launch; 0: no matter
  std::string version;            // of the program, kept in checkpoints
};

// Trains deck.run.steps steps in deck.run.folder, from the newest committed checkpoint there. Collective over the grid;
// `deck` is resolved for it. Returns done, or again when a signal, the file <folder>/STOP or stop_at_step ended it
// early: then the state is saved, and the same command goes on from it. An evaluation that a stop interrupts is dropped
// and made after the restart. Errors: input (the checkpoint does not fit the deck), storage, error (not finite).
template <class T>
ExitCode train(const Deck& deck, const GridComms& comms, Pool& pool, const TrainOptions& options);

}  // namespace fourfold
