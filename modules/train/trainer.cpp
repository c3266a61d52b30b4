#include "train/trainer.hpp"

#include <algorithm>
#include <cmath>
#include <exception>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/timer.hpp"
#include "checkpoint/stage.hpp"
#include "comm/agree.hpp"
#include "comm/launch.hpp"
#include "layers/moe/moe.hpp"
#include "optim/rate.hpp"
#include "train/expert_mover.hpp"

namespace fourfold {

namespace {

template <class V>
std::uint64_t hash_of(const std::vector<V>& values) {
  return hash_bytes({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(V)});
}

// Of the samples of micro-batch `index`. Those of a step are added up: stages may load them in another order.
std::uint64_t hash_of(const Batch& batch, std::int64_t index) {
  return hash_of(std::vector<std::uint64_t>{static_cast<std::uint64_t>(index), hash_of(batch.samples),
                                            hash_of(batch.ids), hash_of(batch.targets), hash_of(batch.inputs),
                                            hash_of(batch.values)});
}

// From a device to host memory, else to a file.
std::unique_ptr<Offload> make_offload(const Deck& deck, Pool& pool) {
  constexpr bool kHost = Kokkos::SpaceAccessibility<Kokkos::HostSpace, Space::memory_space>::accessible;
  return std::make_unique<Offload>(
      pool, kHost ? make_file_store(deck.parallel.activations.offload_folder) : make_host_store());
}

ModelEnds ends_of(const Schedule& schedule, int stage) {
  return {schedule.stage_of(0) == stage, schedule.stage_of(schedule.chunks() - 1) == stage};
}

template <class T>
std::optional<TiedSum<T>> tied_sum(const PipelinePlan& pipeline, const UpdatePlan& plan, const GridComms& comms,
                                   ParamStore<T>& store, Pool& pool) {
  const int stage = comms.here().stage;
  if (!pipeline.tied_across_grids || (stage != 0 && stage != pipeline.tied_stage)) return std::nullopt;
  return std::optional<TiedSum<T>>(std::in_place, plan, comms, store, pipeline.tied_stage, pool);
}

}  // namespace

template <class T>
Trainer<T>::Trainer(const Deck& deck, const GridComms& comms, const Loader& loader, Pool& pool, Trace& trace)
    : deck_(deck),
      comms_(comms),
      loader_(loader),
      pool_(pool),
      trace_(trace),
      pipeline_(plan_pipeline(deck)),
      ends_(ends_of(pipeline_.schedule, comms.here().stage)),
      model_(deck, comms, pool, pipeline_.part_of(comms.here().stage)),
      plan_(deck, comms, model_.params()),
      tensor_sums_(plan_, comms, model_.params()),
      tied_(tied_sum(pipeline_, plan_, comms, model_.params(), pool)),
      reducer_(deck, plan_, comms, model_.params(), tied_ ? &*tied_ : nullptr),
      norm_(deck.numerics, comms, tensor_sums_),
      optimizer_(deck.optimizer, deck.numerics, plan_, tensor_sums_, model_.params(), pool),
      interpreter_(deck_, comms, pipeline_.cuts, model_, pool, trace) {
  if (deck.model.moe && deck.model.moe->migration.every > 0) placement_.emplace(deck_, pipeline_);
  if (!pipeline_.offloads()) return;
  checkpoint::run_stage(comms.world(), "activations cannot be offloaded (parallel.activations.offload_folder)",
                        [&] { offload_ = make_offload(deck, pool); });
}

// The plan's communicators go before the values: nothing may be under way on them.
template <class T>
Trainer<T>::~Trainer() {
  if (std::uncaught_exceptions() == 0) model_.params().finish_gathers();
}

template <class T>
void Trainer<T>::resume(std::int64_t steps_done, std::int64_t cursor, std::int64_t skips) {
  steps_done_ = steps_done;
  cursor_ = cursor;
  skips_ = skips;
}

template <class T>
StepReport Trainer<T>::step() {
  const Stopwatch watch;
  StepReport report;
  report.step = steps_done_ + 1;
  const std::int64_t targets = targets_of_step();
  const double loss_scale = targets > 0 ? 1.0 / static_cast<double>(targets) : 0.0;

  model_.params().restart_gradients();
  const LossSum mine = run_schedule(report, loss_scale);
  {
    set_progress(report.step, "gradient sum");
    const PhaseScope scope(trace_, WorkPhase::gradient_sum, report.step);
    reducer_.finish();
  }
  NormReport norm;
  {
    set_progress(report.step, "gradient norm");
    const PhaseScope scope(trace_, WorkPhase::norm, report.step);
    report.loss = global_loss(mine, targets);
    report.moe = moe_report(comms_.world(), deck_.model, counts_of_experts());
    if (placement_) placement_->count(report.moe);
    norm = norm_.compute();
  }
  report.grad_norm = norm.norm;
  report.learning_rate = learning_rate(deck_.optimizer, deck_.run.steps, report.step);
  if (std::isfinite(report.grad_norm) && std::isfinite(report.loss)) {
    skips_ = 0;
    update(report);
  } else {
    leave_out(report, norm);
  }
  steps_done_ = report.step;
  cursor_ += deck_.batch.global;
  report.tokens = deck_.batch.global * loader_.micro_batch_shape(0, 1, 0).tokens;
  report.seconds = watch.seconds();
  return report;
}

template <class T>
std::vector<std::pair<std::int64_t, MoeCounts>> Trainer<T>::counts_of_experts() const {
  std::vector<std::pair<std::int64_t, MoeCounts>> counts;
  for (const auto& [layer, experts] : model_.expert_layers()) counts.emplace_back(layer, experts->take_counts());
  return counts;
}

// By the loads of the whole step, the same on all ranks.
template <class T>
void Trainer<T>::move_selection_biases(const MoeReport& report) {
  for (const auto& [layer, experts] : model_.expert_layers()) {
    if (experts->options().balance.bias_rate == 0) return;
    const auto of = std::find_if(report.begin(), report.end(),
                                 [number = layer](const MoeLayerReport& entry) { return entry.layer == number; });
    experts->update_selection_bias(of->pairs);
  }
}

template <class T>
std::optional<MigrationReport> Trainer<T>::migrate() {
  if (!placement_ || steps_done_ % deck_.model.moe->migration.every != 0) return std::nullopt;
  const PhaseScope scope(trace_, WorkPhase::update, steps_done_);
  return move_experts(placement_->look());
}

template <class T>
MigrationReport Trainer<T>::restore_placement(const std::string& text) {
  if (!placement_) return {steps_done_, {}};
  return move_experts(placement_->restore(text));
}

template <class T>
MigrationReport Trainer<T>::move_experts(std::vector<LayerMigration> layers) {
  const Stopwatch watch;
  set_progress(steps_done_, "expert migration");
  MigrationReport report{steps_done_, std::move(layers)};
  ExpertMover<T> mover(comms_, plan_, model_.params(), optimizer_, pool_);
  for (const auto& [number, experts] : model_.expert_layers()) {
    const auto of = std::find_if(report.layers.begin(), report.layers.end(),
                                 [layer = number](const LayerMigration& entry) { return entry.layer == layer; });
    if (of == report.layers.end() || of->swaps.empty()) continue;
    report.bytes += mover.swap(*experts, of->swaps);
    FOURFOLD_ASSERT(experts->places() == placement_->places(number), "the layer's map is the run's");
  }
  report.seconds = watch.seconds();
  return report;
}

template <class T>
void Trainer<T>::update(const StepReport& report) {
  set_progress(report.step, "update");
  const PhaseScope scope(trace_, WorkPhase::update, report.step);
  optimizer_.update(report.step, report.learning_rate, clip_factor(deck_.optimizer.clip, report.grad_norm));
  comms_.clock().compute(kNumberType<T>, 0, optimizer_.update_bytes());
  gather_values(plan_, model_.params(), deck_.optimizer.gather);
  move_selection_biases(report.moe);
  Space().fence();
}

template <class T>
void Trainer<T>::leave_out(StepReport& report, const NormReport& norm) {
  report.skipped = "loss " + std::to_string(report.loss) + ", gradient norm " + std::to_string(report.grad_norm) +
                   "; first tensor whose gradient is not finite: " +
                   (norm.first_non_finite.empty() ? "none" : norm.first_non_finite) + "; samples " +
                   std::to_string(cursor_) + " to " + std::to_string(cursor_ + deck_.batch.global - 1) + " of the run";
  if (deck_.numerics.non_finite == NonFinite::skip && skips_ < deck_.numerics.most_skips) {
    ++skips_;
    return;
  }
  const std::string before =
      skips_ > 0 ? ", after " + std::to_string(skips_) + " left out in a row (numerics.non_finite.most)" : "";
  fail_all(ExitCode::error, "step " + std::to_string(report.step) + before + ": " + report.skipped +
                                ". No weight was changed and no checkpoint written");
}

// Over all coordinates.
template <class T>
std::int64_t Trainer<T>::targets_of_step() const {
  if (!loader_.drops_targets()) return loader_.targets_in_step(cursor_, 1, 0);
  // Where depth coordinates share their samples, the first of them counts those; of the stages the last.
  const bool counts = (deck_.parallel.depth_splits == DepthSplits::batch || comms_.here().depth == 0) && ends_.last;
  const BatchCoordinate here = batch_coordinate(deck_.parallel, comms_);
  const std::int64_t mine = counts ? loader_.targets_in_step(cursor_, here.count, here.index) : 0;
  return sum_over_coordinates({0.0, mine}, comms_, Phase::control).targets;
}

template <class T>
MicroBatch<T> Trainer<T>::load(StepReport& report, std::int64_t index, Batch& batch) const {
  const BatchCoordinate coordinate = batch_coordinate(deck_.parallel, comms_);
  const bool check = deck_.debug.replica_check > 0;
  batch = needs_samples(deck_, ends_) || check
              ? loader_.micro_batch(cursor_, index, coordinate.count, coordinate.index, std::move(batch))
              : loader_.micro_batch_shape(index, coordinate.count, coordinate.index);
  if (check) {
    report.coordinate = coordinate;
    report.samples_hash += hash_of(batch, index);
  }
  return make_micro_batch<T>(deck_, comms_, batch, pool_, ends_);
}

template <class T>
LossSum Trainer<T>::run_schedule(StepReport& report, double loss_scale) {
  Batch batch;
  typename Interpreter<T>::Work work;
  work.pass.training = true;
  work.pass.step = static_cast<std::uint64_t>(report.step);
  work.pass.loss_scale = loss_scale;
  work.pass.step_sequences = deck_.batch.global;
  work.pass.micro_batches = deck_.batch.micro_batches;
  work.load = [&](int index) { return load(report, index, batch); };
  work.gradients = [&](int chunk) {
    set_progress(report.step, "gradient sum");
    const PhaseScope scope(trace_, WorkPhase::gradient_sum, report.step);
    reducer_.start(chunk);
  };
  work.done = observer_;
  work.offload = offload_.get();
  return interpreter_.run(pipeline_.schedule, work);
}

// Summed first, divided once.
template <class T>
double Trainer<T>::global_loss(const LossSum& mine, std::int64_t targets) const {
  const LossSum all = sum_over_coordinates(mine, comms_, Phase::update);
  FOURFOLD_ASSERT(all.targets == targets, "the loader knows the targets of a step beforehand");
  // Halved squares of outputs.
  if (deck_.numerics.snap && !(std::abs(all.loss) < exact_limit(2 * *deck_.numerics.snap + 1))) {
    fail_all(ExitCode::error, "numerics.snap: the loss leaves the range in which its sum is exact");
  }
  return targets > 0 ? all.loss / static_cast<double>(targets) : 0.0;
}

template class Trainer<float>;
template class Trainer<double>;
template class Trainer<kernels::bf16>;

}  // namespace fourfold
