// What a stage of a pipeline has of the model.
#pragma once

#include <vector>

#include "deck/derive.hpp"
#include "grid/partition.hpp"

namespace fourfold {

struct StagePart {
  std::vector<Range> chunks;  // the units of each, in the model's order; none empty
  // The stage with the head, where that is tied to the embedding and the two are on different stages; else 0.
  int tied_stage = 0;
  // The two have different grids: each sums the gradient over its own ranks, and then the two exchange these sums
  // (optim/tied_sum.hpp). The first stage counts the matrix and writes it.
  bool tied_across_grids = false;
  bool first = true;  // the stage has the model's first unit
};

inline StagePart whole_model(const ModelDeck& model) {  // in one chunk
  return {{Range{0, unit_count(model)}}};
}

// Whether a matrix of the embedding is used outside this chunk too: its gradient is complete when all chunks are done.
inline bool shares_table(const ModelDeck& model, const Range& chunk) {
  return model.tie_embeddings && chunk.size() < unit_count(model);
}

}  // namespace fourfold
