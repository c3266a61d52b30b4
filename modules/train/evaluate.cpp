#include "train/evaluate.hpp"

#include "base/error.hpp"
#include "base/timer.hpp"
#include "data/bytes.hpp"
#include "train/micro_batch.hpp"

namespace fourfold {

template <class T>
std::optional<EvalReport> evaluate(Model<T>& model, const Loader& loader, const GridComms& comms, Pool& pool,
                                   const EvalProgress& progress) {
  FOURFOLD_ASSERT(loader.eval_samples() > 0, "there is validation data");
  const Stopwatch watch;
  const BatchCoordinate coordinate = batch_coordinate(model.deck().parallel, comms);
  LossSum mine;
  Batch batch;
  for (std::int64_t index = 0; index < loader.eval_batches(); ++index) {
    batch = loader.eval_batch(index, coordinate.count, coordinate.index, std::move(batch));
    const MicroBatch<T> micro = make_micro_batch<T>(model.deck(), comms, batch, pool);
    Pass<T> pass;
    pass.batch = &micro;
    Activations<T> none;
    const LossSum sum = model.forward(pass, none);
    mine.loss += sum.loss;
    mine.targets += sum.targets;
    if (progress && progress(index + 1, loader.eval_batches())) return std::nullopt;
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

template std::optional<EvalReport> evaluate<float>(Model<float>&, const Loader&, const GridComms&, Pool&,
                                                   const EvalProgress&);
template std::optional<EvalReport> evaluate<kernels::bf16>(Model<kernels::bf16>&, const Loader&, const GridComms&,
                                                           Pool&, const EvalProgress&);
template std::optional<EvalReport> evaluate<double>(Model<double>&, const Loader&, const GridComms&, Pool&,
                                                    const EvalProgress&);

}  // namespace fourfold
