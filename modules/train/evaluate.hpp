// The loss on held-out data, exact for any number of samples on any grid: each sample counts once.
#pragma once

#include <functional>
#include <optional>

#include "comm/grid_comms.hpp"
#include "data/loader.hpp"
#include "model/model.hpp"
#include "train/pipeline.hpp"

namespace fourfold {

struct EvalReport {
  double loss = 0;  // sum of token losses over their count
  std::int64_t samples = 0, targets = 0;
  std::optional<double> bits_per_byte;  // where the tokens are text
  double seconds = 0;
};

// Told now and then, on all ranks, how many batches of all are done. It says whether to stop, the same on all ranks.
using EvalProgress = std::function<bool(std::int64_t done, std::int64_t batches)>;

// The loader's validation samples (it must have some), as many batches at a time as there are stages. `model` is this
// stage's part by `plan`. Collective. Nothing is returned where `progress`, which may be empty, stopped it.
template <class T>
std::optional<EvalReport> evaluate(Model<T>& model, const PipelinePlan& plan, const Loader& loader,
                                   const GridComms& comms, Pool& pool, const EvalProgress& progress);

}  // namespace fourfold
