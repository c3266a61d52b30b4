// The progress table for people: a row at most once a second, fewer as the run grows long (a hundredth of its time, up
// to a minute), so that logs stay readable. Only rows, no cursor movement: mpirun gives ranks a terminal even when its
// own output goes to a file.
#pragma once

#include <cstdint>
#include <string>

#include "base/timer.hpp"
#include "checkpoint/checkpoint.hpp"
#include "train/evaluate.hpp"
#include "train/trainer.hpp"

namespace fourfold {

// Used by the rank that prints.
class Console {
 public:
  // flops_per_token: of the model, forward and backward; ceiling: FLOP/s of the machine (0: unknown).
  Console(std::int64_t steps, std::int64_t first_step, double flops_per_token, double ceiling);

  void step(const StepReport& report);
  // A row now and then while an evaluation lasts.
  void evaluating(std::int64_t step, std::int64_t batches_done, std::int64_t batches);
  void evaluation(std::int64_t step, const EvalReport& report);
  void migration(const MigrationReport& report);
  void checkpoint(std::int64_t step, const checkpoint::SaveReport& report);

 private:
  double interval() const;  // seconds between rows
  void row(const StepReport& report);

  std::int64_t steps_, first_step_;
  double flops_per_token_, ceiling_;
  Stopwatch run_, since_row_;
  bool header_ = false;
  std::int64_t tokens_ = 0;                   // since the last row
  double seconds_ = 0;                        // of steps, since the last row
  double step_seconds_ = 0, steps_seen_ = 0;  // smoothed, for the time left
  double pause_seconds_ = 0;                  // evaluation and checkpoints of this session
};

}  // namespace fourfold
