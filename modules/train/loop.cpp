#include "train/loop.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/stop_flag.hpp"
#include "base/timer.hpp"
#include "base/trace.hpp"
#include "base/units.hpp"
#include "checkpoint/checkpoint.hpp"
#include "comm/agree.hpp"
#include "comm/collectives.hpp"
#include "comm/launch.hpp"
#include "data/loader.hpp"
#include "deck/derive.hpp"
#include "deck/writer.hpp"
#include "kernels/vector.hpp"
#include "model/describe.hpp"
#include "train/calibrate.hpp"
#include "train/checkpoints.hpp"
#include "train/console.hpp"
#include "train/evaluate.hpp"
#include "train/metrics.hpp"
#include "train/phases.hpp"
#include "train/replica_check.hpp"
#include "train/restart.hpp"
#include "train/saved_tensors.hpp"
#include "train/slow_ranks.hpp"
#include "train/stop_request.hpp"
#include "train/traffic.hpp"
#include "train/trainer.hpp"
#include "train/watched.hpp"

namespace fourfold {

namespace {

constexpr std::size_t kTraceEvents = std::size_t{1} << 18;  // about 30 MiB a rank
constexpr std::int64_t kWarmUpSteps = 2;                    // of a session, not in its tokens per second

// The launch's operations leave their events in `trace` meanwhile.
class Traced {
 public:
  Traced(const Communicator& world, Trace& trace) : world_(world) { world_.set_trace(&trace); }
  ~Traced() { world_.set_trace(nullptr); }
  Traced(const Traced&) = delete;
  Traced& operator=(const Traced&) = delete;

 private:
  const Communicator& world_;
};

// One process's life of a run.
// What a rank needs, told to the ledger for its message when memory runs out.
MemoryPerRank foretell(const Deck& deck, MemoryLedger& ledger) {
  const MemoryPerRank memory = memory_per_rank(deck, plan_pipeline(deck));
  ledger.expect(MemoryTag::parameters, memory.parameters);
  ledger.expect(MemoryTag::gradients, memory.gradients);
  ledger.expect(MemoryTag::optimizer, memory.optimizer);
  ledger.expect(MemoryTag::activations, memory.activations);
  return memory;
}

template <class T>
class Session {
 public:
  Session(const Deck& deck, const GridComms& comms, Pool& pool, const TrainOptions& options, AroundStep around = {})
      : deck_(deck),
        comms_(comms),
        world_(comms.world()),
        pool_(pool),
        options_(options),
        around_(std::move(around)),
        reckoned_(foretell(deck, pool.ledger())),
        trace_(deck.run.trace ? kTraceEvents : 0, options.started_ns > 0 ? options.started_ns : now_ns()),
        traced_(comms.world(), trace_),
        loader_(open_loader(deck, comms.world())),
        trainer_(deck, comms, *loader_, pool, trace_),
        saved_(trainer_.model(), &trainer_.optimizer(), comms),
        checkpoints_(comms.world(), deck, *loader_, saved_.shards(), pool.ledger(), options.version,
                     [this](std::int64_t step, const checkpoint::SaveReport& report) { tell(step, report); }),
        stop_(comms.world(), deck.run.folder,
              session_end(deck.run.time_limit, options.started_ns > 0 ? options.started_ns : now_ns())),
        flops_per_token_(static_cast<double>(describe(deck.model).training_flops())) {
    trainer_.observe([this](const StageOperation& operation) {
      if (is_compute(operation.kind)) look_for_stop();
    });
    if (deck.debug.record == 0) return;
    record_.emplace(trainer_.model(), &trainer_.optimizer(), comms);
    record_->add_gradients(trainer_.plan());
  }

  ExitCode run() {
    prepare_folder(world_, deck_);
    set_progress(0, "restart");
    choose_file_component(world_, deck_);
    restart();
    if (stop_lies_behind()) return ExitCode::done;
    checkpoints_.compare_with_free_space(saves_to_come());
    write_resolved_deck(world_, deck_);  // a refused restart leaves the run's deck as it was
    open_reports();
    trace_.enter(WorkPhase::between);
    if (evaluation_left_over()) evaluate_now();
    bool stop = stop_.agreed();
    while (step() < deck_.run.steps && !stop && !told_to_stop()) {
      const StepReport report = step_or_reports();
      log(report);
      look_for_faults(report);
      look_for_slow_ranks();
      migrate();
      look_at_checkpoint();
      stop = stop_.agreed();
      if (evaluation_due()) {
        if (stop) {
          evaluation_dropped_ = true;
        } else {
          evaluate_now();
          stop = evaluation_dropped_;
        }
      }
      if (checkpoint_due() || stop || told_to_stop()) {
        checkpoint_now();
        stop = stop_.agreed();  // asked for meanwhile: this save is the last
      }
    }
    return finish();
  }

 private:
  std::int64_t step() const { return trainer_.steps_done(); }
  bool first_rank() const { return world_.rank() == 0; }
  // Nothing is done then; exit code 75 would say: run me again.
  bool stop_lies_behind() const {
    if (!told_to_stop() || step() == 0 || step() >= deck_.run.steps) return false;
    log_info(fmt::format(
        "--stop-at-step {}: {} is at step {} of {} already, nothing is done; give a later step, or leave the "
        "option out to go on",
        options_.stop_at_step, deck_.run.folder, step(), deck_.run.steps));
    return true;
  }
  bool told_to_stop() const { return options_.stop_at_step > 0 && step() >= options_.stop_at_step; }
  bool evaluation_due() const {
    const std::int64_t every = deck_.eval.every;
    return loader_->eval_samples() > 0 && step() > 0 &&
           (step() == deck_.run.steps || (every > 0 && step() % every == 0));
  }
  bool checkpoint_due() const {
    const std::int64_t every = deck_.checkpoint.every;
    return step() == deck_.run.steps || (every > 0 && step() % every == 0);
  }

  std::int64_t saves_to_come() const {
    const std::int64_t left = std::max<std::int64_t>(deck_.run.steps - step(), 0);
    const std::int64_t every = deck_.checkpoint.every;
    return every > 0 ? (left + every - 1) / every : std::min<std::int64_t>(left, 1);
  }

  void restart() {
    const std::optional<RunPosition> position =
        load_newest_checkpoint(world_, deck_, *loader_, saved_.shards(), options_, host_memory(pool_.ledger()));
    if (!position) return start_from_weights();
    saved_.to_device();
    trainer_.resume(position->step, position->cursor, position->skips);
    follow(trainer_.restore_placement(position->placement));
    resumed_from_ = position->step;
    last_saved_ = position->step;
  }

  // A new run whose weights are another's; all else begins anew.
  void start_from_weights() {
    if (deck_.model.init.from == "none") return;
    const checkpoint::Committed source = load_parameters(trainer_.model(), deck_, comms_, deck_.model.init.from);
    trainer_.optimizer().copy_to_masters();
    log_info(fmt::format("weights of {}, step {}; the optimizer and the steps begin anew", source.path, source.step));
  }

  // After every micro-batch. A step that has begun is finished.
  void look_for_stop() {
    if (stop_.look())
      log_info(fmt::format("{} asks for a stop: step {} is finished first", stop_.reason(), step() + 1));
  }

  // A step that all ranks refuse (values that are not finite) ends the run, but not without its reports.
  StepReport step_or_reports() {
    const std::int64_t flops_before = comms_.clock().flops();
    try {
      if (around_) around_(step() + 1, true);
      const StepReport report = trainer_.step();
      if (around_) around_(step(), false);
      hardware_flops_ += comms_.clock().flops() - flops_before;
      return report;
    } catch (const Error& error) {
      if (error.caller() == Caller::all_ranks) {
        try {
          complete_checkpoint();
        } catch (const Error& other) {
          log_error(other.what());
        }
        leave_reports();
      }
      throw;
    }
  }

  void open_reports() {
    const Ceiling ceiling = find_ceiling<T>(deck_of_place(deck_, comms_.here()), world_, options_.calibrate);
    if (!first_rank()) return;
    metrics_ = std::make_unique<Metrics>(deck_.run.folder, step(), ceiling);
    console_ = std::make_unique<Console>(deck_.run.steps, step() + 1, flops_per_token_, ceiling.flops_per_second);
    const std::string steps = step() < deck_.run.steps
                                  ? fmt::format("steps {} to {}", step() + 1, deck_.run.steps)
                                  : fmt::format("all {} steps are done, nothing left to train", deck_.run.steps);
    log_info(fmt::format("run {}: {} ranks, {} parameters, {} model FLOPs a token, {}", deck_.run.name, world_.size(),
                         format_thousands(describe(deck_.model).parameters()),
                         format_thousands(static_cast<std::int64_t>(flops_per_token_)), steps));
    const std::string rate =
        ceiling.flops_per_second > 0 ? format_count(ceiling.flops_per_second) + "FLOP/s, " : std::string();
    log_info("groups: " + comms_.summary());
    log_info("ceiling: " + rate + ceiling.source);
    if (stop_.end().at_ns != 0) {
      log_info(fmt::format("ends itself within {} by {}, with a checkpoint",
                           format_duration(std::max(0.0, static_cast<double>(stop_.end().at_ns - now_ns()) * 1e-9)),
                           stop_.end().who));
    }
  }

  // The evaluation of the step that the checkpoint holds was interrupted.
  bool evaluation_left_over() const {
    return agree_any(world_, first_rank() && evaluation_due() && resumed_from_ && !metrics_->had_eval(step()));
  }

  void log(const StepReport& report) {
    ++steps_here_;
    tokens_here_ += report.tokens;
    all_step_seconds_ += report.seconds;
    if (steps_here_ > kWarmUpSteps) {
      tokens_ += report.tokens;
      step_seconds_ += report.seconds;
    }
    stop_.took_step(report.seconds);
    if (!first_rank()) return;
    if (!report.skipped.empty()) log_warn(fmt::format("step {} is left out: {}", report.step, report.skipped));
    metrics_->write(report, flops_per_token_ * static_cast<double>(report.tokens));
    console_->step(report);
  }

  void look_for_faults(const StepReport& report) {
    const auto due = [&](std::int64_t every) { return every > 0 && report.step % every == 0; };
    if (due(deck_.debug.replica_check)) {
      set_progress(step(), "replica check");
      const PhaseScope scope(trace_, WorkPhase::checks, step());
      saved_.to_host();
      check_replicas(world_, report.step, saved_.shards(), report.coordinate, report.samples_hash);
    }
    if (due(deck_.debug.record)) {
      set_progress(step(), "record");
      const PhaseScope scope(trace_, WorkPhase::checks, step());
      record_->to_host();
      save_record(world_, deck_, record_->shards(), {step(), trainer_.cursor()});
    }
  }

  // model.moe.migration.
  void migrate() {
    const std::optional<MigrationReport> report = trainer_.migrate();
    if (!report) return;
    follow(*report);
    if (!first_rank()) return;
    console_->migration(*report);
    metrics_->write(*report);
  }

  void follow(const MigrationReport& report) {
    if (!report.any()) return;
    saved_.follow_places();
    if (record_) record_->follow_places();
  }

  // Who was slow in the steps since the last look.
  void look_for_slow_ranks() {
    const std::int64_t every = deck_.run.ranks_every;
    if (every == 0 || world_.size() == 1 || step() % every != 0) return;
    const VirtualClock::Pause pause(comms_.clock());
    const double waited = seconds_waited(world_);
    const SlowRanks slow = slow_ranks(world_, {all_step_seconds_ - looked_at_.all, waited - looked_at_.waiting},
                                      steps_here_ - steps_looked_at_);
    looked_at_ = {all_step_seconds_, waited};
    steps_looked_at_ = steps_here_;
    if (!first_rank()) return;
    log_info(fmt::format("{:>9} {}", step(), slow_ranks_text(slow)));
    metrics_->write(step(), slow);
  }

  void evaluate_now() {
    complete_checkpoint();
    set_progress(step(), "evaluation");
    const PhaseScope scope(trace_, WorkPhase::evaluation, step());
    trainer_.model().params().finish_gathers();       // of the last step, so they count
    const VirtualClock::Pause pause(comms_.clock());  // the clock is of training steps
    const std::optional<EvalReport> report = evaluate(trainer_.model(), trainer_.pipeline(), *loader_, comms_, pool_,
                                                      [this](std::int64_t done, std::int64_t batches) {
                                                        if (first_rank()) console_->evaluating(step(), done, batches);
                                                        return stop_.agreed();
                                                      });
    evaluation_dropped_ = !report;
    if (!report || !first_rank()) return;
    metrics_->write(step(), *report);
    console_->evaluation(step(), *report);
  }

  void checkpoint_now() {
    if (last_saved_ == step()) return;
    set_progress(step(), "checkpoint");
    const PhaseScope scope(trace_, WorkPhase::checkpoint, step());
    refuse_unless_finite();
    saved_.to_host();
    checkpoints_.save({step(), trainer_.cursor(), trainer_.skips(), trainer_.placement()}, resumed_from_);
    last_saved_ = step();
  }

  void look_at_checkpoint() {
    if (!checkpoints_.under_way()) return;
    const PhaseScope scope(trace_, WorkPhase::checkpoint, step());
    checkpoints_.advance();
  }

  void complete_checkpoint() {
    if (!checkpoints_.under_way()) return;
    set_progress(step(), "checkpoint");
    const PhaseScope scope(trace_, WorkPhase::checkpoint, step());
    checkpoints_.complete();
  }

  // Of a step that is committed now.
  void tell(std::int64_t step, const checkpoint::SaveReport& report) {
    stop_.took_save(std::min(report.seconds, report.blocked_seconds + report.write_seconds + report.fsync_seconds));
    if (!first_rank()) return;
    for (const std::string& note : report.notes) log_info("checkpoint: " + note);
    console_->checkpoint(step, report);
    metrics_->write(step, report);
  }

  // Checkpoints with values that are not finite would in time remove the healthy ones.
  void refuse_unless_finite() {
    const Space space;
    std::string bad;
    for (const Param<T>& param : trainer_.model().params().params()) {
      const kernels::Vector<const T> values(param.use().data(), param.value.extent(0));
      if (bad.empty() && kernels::count_nonfinite<T>(space, values) > 0) bad = param.spec.name;
    }
    if (agree_any(world_, !bad.empty())) {
      fail_all(ExitCode::error, fmt::format("step {}: {} holds values that are not finite; no checkpoint written",
                                            step(), bad.empty() ? "a parameter of another rank" : bad));
    }
  }

  ExitCode finish() {
    if (step() > 0) checkpoint_now();
    complete_checkpoint();
    checkpoints_.finish();
    leave_reports();
    stop_.clear_file();
    if (step() >= deck_.run.steps && !evaluation_dropped_) return ExitCode::done;
    const std::string reason = stop_.reason().empty() ? "--stop-at-step" : stop_.reason();
    log_info(
        fmt::format("stopped by {} after step {} of {}; the same command goes on", reason, step(), deck_.run.steps));
    return ExitCode::again;
  }

  // Collective.
  void leave_reports() {
    summary();
    if (!trace_.on()) return;
    set_progress(step(), "trace");
    write_run_trace();
  }

  // Collective: the largest of each number over the ranks.
  void summary() {
    const MemoryLedger& memory = pool_.ledger();
    std::array<double, kMemoryTags + 1> peaks{};
    for (int tag = 0; tag < kMemoryTags; ++tag) {
      peaks[static_cast<std::size_t>(tag)] = static_cast<double>(memory.peak(static_cast<MemoryTag>(tag)));
    }
    peaks.back() = static_cast<double>(memory.peak_total());
    all_reduce_max<double>(world_, peaks, Phase::control);
    const TrafficReport traffic = traffic_report(world_);
    const PhaseReport phases = phase_report(world_, trace_);
    const SlowRanks slow = slow_ranks(world_, {all_step_seconds_, seconds_waited(world_)}, steps_here_);
    auto hardware = static_cast<double>(hardware_flops_);
    all_reduce_sum<double>(world_, {&hardware, 1}, Summation::fast, Phase::control);
    if (!first_rank()) return;
    if (step_seconds_ > 0) {
      const double rate = static_cast<double>(tokens_) / step_seconds_;
      log_info(fmt::format(
          "{} tokens/s, {}FLOP/s in this session, its first {} steps, evaluation and checkpoints not counted",
          format_thousands(static_cast<std::int64_t>(rate)), format_count(rate * flops_per_token_), kWarmUpSteps));
    }
    if (steps_here_ > 0) {
      const double tokens = static_cast<double>(tokens_here_);
      log_info(fmt::format(
          "model FLOPs {} a token; computed {} a token: what ranks repeat and backward computes again is in it",
          format_thousands(static_cast<std::int64_t>(flops_per_token_)),
          format_thousands(static_cast<std::int64_t>(hardware / tokens))));
      metrics_->write_flops(step(), flops_per_token_, hardware / tokens);
    }
    log_info(fmt::format("{} in all; by phase, a rank's mean and the largest:\n{}", format_duration(phases.whole),
                         phase_table(phases)));
    metrics_->write(step(), phases);
    std::string text = "peak memory of a rank:";
    for (int tag = 0; tag < kMemoryTags; ++tag) {
      text += fmt::format(" {} {}B,", memory_tag_name(static_cast<MemoryTag>(tag)),
                          format_count(peaks[static_cast<std::size_t>(tag)]));
    }
    log_info(fmt::format("{} together at most {}B", text, format_count(peaks.back())));
    log_info(fmt::format(
        "  reckoned before: parameters {}B, gradients {}B, optimizer {}B, activations {}B between "
        "operations (one that runs adds copies of its own)",
        format_count(static_cast<double>(reckoned_.parameters)), format_count(static_cast<double>(reckoned_.gradients)),
        format_count(static_cast<double>(reckoned_.optimizer)),
        format_count(static_cast<double>(reckoned_.activations))));
    if (world_.size() > 1 && steps_here_ > 0) {
      log_info(slow_ranks_text(slow));
      metrics_->write(step(), slow);
    }
    if (world_.size() > 1) {
      log_info("communication of all ranks in this session, by axis; exposed: a rank's mean\n" +
               traffic_table(traffic));
    }
    if (traffic.makespan) {
      const double seconds = static_cast<double>(*traffic.makespan) * 1e-12;
      log_info(fmt::format("virtual clock ({}): {:.6g} s for {} steps, {:.6g} s a step",
                           deck_.emulate.description ? deck_.emulate.description->name : "emulate.stage_times", seconds,
                           steps_here_, steps_here_ > 0 ? seconds / static_cast<double>(steps_here_) : 0.0));
    }
    if (world_.size() > 1 || traffic.makespan) metrics_->write(step(), traffic);
  }

  void write_run_trace() {
    const std::vector<std::string> events = gather_strings(world_, trace_.json_events(world_.rank()));
    if (first_rank()) write_trace(deck_.run.folder + "/trace.json", events);
    if (trace_.dropped() > 0) log_warn(fmt::format("trace.json is full: {} events left out", trace_.dropped()));
  }

  const Deck& deck_;
  const GridComms& comms_;
  const Communicator& world_;
  Pool& pool_;
  const TrainOptions& options_;
  const AroundStep around_;
  const MemoryPerRank reckoned_;  // of the rank that needs most; before anything takes memory
  const StopSignals signals_;
  Trace trace_;
  const Traced traced_;
  std::unique_ptr<Loader> loader_;
  Trainer<T> trainer_;
  SavedTensors<T> saved_;
  Checkpoints checkpoints_;
  std::optional<SavedTensors<T>> record_;
  StopRequest stop_;
  std::unique_ptr<Metrics> metrics_;  // rank 0
  std::unique_ptr<Console> console_;  // rank 0
  double flops_per_token_ = 0;
  std::optional<std::int64_t> resumed_from_;
  std::int64_t last_saved_ = -1;
  bool evaluation_dropped_ = false;
  std::int64_t steps_here_ = 0, tokens_here_ = 0;  // of this session
  std::int64_t tokens_ = 0;                        // the same after the warm-up
  std::int64_t hardware_flops_ = 0;                // of this rank's products in this session's steps
  double step_seconds_ = 0, all_step_seconds_ = 0;
  StepSeconds looked_at_;  // up to the last look for slow ranks
  std::int64_t steps_looked_at_ = 0;
};

}  // namespace

template <class T>
ExitCode train(const Deck& deck, const GridComms& comms, Pool& pool, const TrainOptions& options) {
  return Session<T>(deck, comms, pool, options).run();
}

template <class T>
ExitCode train_watched(const Deck& deck, const GridComms& comms, Pool& pool, const TrainOptions& options,
                       const AroundStep& around) {
  return Session<T>(deck, comms, pool, options, around).run();
}

template ExitCode train<float>(const Deck&, const GridComms&, Pool&, const TrainOptions&);
template ExitCode train<double>(const Deck&, const GridComms&, Pool&, const TrainOptions&);
template ExitCode train<kernels::bf16>(const Deck&, const GridComms&, Pool&, const TrainOptions&);
template ExitCode train_watched<float>(const Deck&, const GridComms&, Pool&, const TrainOptions&, const AroundStep&);
template ExitCode train_watched<double>(const Deck&, const GridComms&, Pool&, const TrainOptions&, const AroundStep&);
template ExitCode train_watched<kernels::bf16>(const Deck&, const GridComms&, Pool&, const TrainOptions&,
                                               const AroundStep&);

}  // namespace fourfold
