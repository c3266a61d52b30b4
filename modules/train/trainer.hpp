// One training step: gradients of all micro-batches by the schedule, their sum over ranks, the norm, the update.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/trace.hpp"
#include "comm/grid_comms.hpp"
#include "data/loader.hpp"
#include "deck/deck.hpp"
#include "model/model.hpp"
#include "optim/norm.hpp"
#include "optim/optimizer.hpp"
#include "optim/reducer.hpp"
#include "train/interpreter.hpp"
#include "train/micro_batch.hpp"
#include "train/migration.hpp"
#include "train/moe_report.hpp"
#include "train/pipeline.hpp"

namespace fourfold {

struct StepReport {
  std::int64_t step = 0;
  double loss = 0;       // sum of token losses over the global count of target tokens
  double grad_norm = 0;  // before clipping
  double learning_rate = 0;
  std::int64_t tokens = 0;  // global batch x sequence, counted once
  MoeReport moe;            // of the step's forward passes, each counted once
  double seconds = 0;       // wall clock of this rank
  std::string skipped;      // why the step changed no weight (numerics.non_finite); empty: it did
  // Of this rank's samples, where the deck asks for debug.replica_check.
  BatchCoordinate coordinate;
  std::uint64_t samples_hash = 0;
};

template <class T>
class Trainer {
 public:
  // Collective over the grid. `deck` is resolved for the grid. Keeps references to all but the deck. Errors: Error
  // (storage, all ranks): no file can be made for what is offloaded.
  Trainer(const Deck& deck, const GridComms& comms, const Loader& loader, Pool& pool, Trace& trace);
  // Told after each operation of the schedule.
  using Observer = std::function<void(const StageOperation& operation)>;
  void observe(Observer observer) { observer_ = std::move(observer); }

  ~Trainer();  // waits for values that are under way
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // The next step. Collective. Where loss or gradient is not finite no weight and no moment changes; by the deck's
  // numerics.non_finite that is an error of all ranks, with the first such tensor, or the step is left out: it counts
  // (its number, its samples and its place in the learning rate are spent), and an error comes after `most` in a row.
  // All ranks decide the same: loss and norm are those of the whole job. Errors: fail_all (error), also where a snapped
  // run leaves its exact range.
  StepReport step();

  // model.moe.migration, after a step: where a look at the loads is due, experts change places. Collective. Views on
  // parameters and states are old where any() moved (SavedTensors::follow_places()). Nothing: no look was due.
  std::optional<MigrationReport> migrate();
  // The same for a checkpoint: which expert is where, and the loads since the last look; empty where the deck asks for
  // no migration.
  std::string placement() const { return placement_ ? placement_->text() : std::string(); }
  // After a restart, once values and states are there. Collective. Errors (all ranks, storage): another model's.
  MigrationReport restore_placement(const std::string& text);

  std::int64_t steps_done() const { return steps_done_; }
  std::int64_t cursor() const { return cursor_; }  // samples consumed by all steps so far
  std::int64_t skips() const { return skips_; }    // steps left out in a row, up to now
  // Continue after a restart; parameters and optimizer states are read elsewhere.
  void resume(std::int64_t steps_done, std::int64_t cursor, std::int64_t skips = 0);

  Model<T>& model() { return model_; }
  Optimizer<T>& optimizer() { return optimizer_; }
  const UpdatePlan& plan() const { return plan_; }
  const PipelinePlan& pipeline() const { return pipeline_; }

 private:
  MicroBatch<T> load(StepReport& report, std::int64_t index, Batch& batch) const;
  LossSum run_schedule(StepReport& report, double loss_scale);
  std::int64_t targets_of_step() const;
  std::vector<std::pair<std::int64_t, MoeCounts>> counts_of_experts() const;  // of this step and rank
  MigrationReport move_experts(std::vector<LayerMigration> layers);
  void move_selection_biases(const MoeReport& report);
  double global_loss(const LossSum& mine, std::int64_t targets) const;
  void leave_out(StepReport& report, const NormReport& norm);
  void update(const StepReport& report);

  Deck deck_;
  const GridComms& comms_;
  const Loader& loader_;
  Pool& pool_;
  Trace& trace_;
  PipelinePlan pipeline_;
  ModelEnds ends_;
  Model<T> model_;
  UpdatePlan plan_;
  TensorSums<T> tensor_sums_;
  std::optional<TiedSum<T>> tied_;
  Reducer<T> reducer_;
  GradientNorm<T> norm_;
  Optimizer<T> optimizer_;
  Interpreter<T> interpreter_;
  std::optional<ExpertPlacement> placement_;  // where the deck asks for migration
  std::unique_ptr<Offload> offload_;          // where the plan offloads, on all ranks
  Observer observer_;
  std::int64_t steps_done_ = 0;
  std::int64_t cursor_ = 0;
  std::int64_t skips_ = 0;  // in a row
};

}  // namespace fourfold
