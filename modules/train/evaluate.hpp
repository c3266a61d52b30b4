// The loss on held-out data, exact for any number of samples on any grid: each sample counts once.
#pragma once

#include <functional>
#include <optional>

#include "comm/grid_comms.hpp"
#include "data/loader.hpp"
#include "model/model.hpp"

namespace fourfold {

struct EvalReport {
  double loss = 0;  // sum of token losses over their count
  std::int64_t samples = 0, targets = 0;
  std::optional<double> bits_per_byte;  // where the tokens are text
  double seconds = 0;
};

// The loader's validation samples (it must have some). Collective. `stop` is asked after every batch, on all ranks, and
// must answer the same on all; with true the evaluation is dropped (nothing is returned). `stop` may be empty.
template <class T>
std::optional<EvalReport> evaluate(Model<T>& model, const Loader& loader, const GridComms& comms, Pool& pool,
                                   const std::function<bool()>& stop);

}  // namespace fourfold
