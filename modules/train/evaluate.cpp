#include "train/evaluate.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/timer.hpp"
#include "data/bytes.hpp"
#include "train/interpreter.hpp"
#include "train/micro_batch.hpp"

namespace fourfold {

template <class T>
std::optional<EvalReport> evaluate(Model<T>& model, const PipelinePlan& plan, const Loader& loader,
                                   const GridComms& comms, Pool& pool, const EvalProgress& progress) {
  FOURFOLD_ASSERT(loader.eval_samples() > 0, "there is validation data");
  const Stopwatch watch;
  const BatchCoordinate coordinate = batch_coordinate(model.deck().parallel, comms);
  const int stage = comms.here().stage;
  const ModelEnds ends{plan.schedule.stage_of(0) == stage, plan.schedule.stage_of(plan.schedule.chunks() - 1) == stage};
  Trace untraced;
  Interpreter<T> interpreter(model.deck(), comms, plan.cuts, model, pool, untraced);
  LossSum mine;
  Batch batch;
  std::int64_t done = 0;
  typename Interpreter<T>::Work work;
  work.load = [&](int index) {
    batch = needs_samples(model.deck(), ends)
                ? loader.eval_batch(done + index, coordinate.count, coordinate.index, std::move(batch))
                : loader.eval_batch_shape(done + index, coordinate.count, coordinate.index);
    return make_micro_batch<T>(model.deck(), comms, batch, pool, ends);
  };
  Schedule schedule;
  while (done < loader.eval_batches()) {
    const auto now = static_cast<int>(std::min<std::int64_t>(plan.schedule.stages, loader.eval_batches() - done));
    if (schedule.micro_batches != now || schedule.lists.empty()) schedule = forward_schedule(plan.schedule, now);
    const LossSum sum = interpreter.run(schedule, work);
    mine.loss += sum.loss;
    mine.targets += sum.targets;
    done += now;
    if (progress && progress(done, loader.eval_batches())) return std::nullopt;
  }
  const LossSum all = sum_over_coordinates(mine, comms, Phase::evaluate);
  FOURFOLD_ASSERT(all.targets == loader.eval_targets(), "every validation sample came once");
  EvalReport report;
  report.samples = loader.eval_samples();
  report.targets = all.targets;
  report.loss = all.targets > 0 ? all.loss / static_cast<double>(all.targets) : 0.0;
  if (loader.eval_bytes() > 0) report.bits_per_byte = bits_per_byte(all.loss, loader.eval_bytes());
  report.seconds = watch.seconds();
  return report;
}

template std::optional<EvalReport> evaluate<float>(Model<float>&, const PipelinePlan&, const Loader&, const GridComms&,
                                                   Pool&, const EvalProgress&);
template std::optional<EvalReport> evaluate<kernels::bf16>(Model<kernels::bf16>&, const PipelinePlan&, const Loader&,
                                                           const GridComms&, Pool&, const EvalProgress&);
template std::optional<EvalReport> evaluate<double>(Model<double>&, const PipelinePlan&, const Loader&,
                                                    const GridComms&, Pool&, const EvalProgress&);

}  // namespace fourfold
