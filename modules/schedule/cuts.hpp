// A model's units, and how a chain of them is cut into chunks: contiguous, none empty, every unit once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/graph.hpp"
#include "grid/partition.hpp"
#include "schedule/timeline.hpp"

namespace fourfold {

// What one chunk has at least: the embedding, a block, the head with the final norm, a matrix of an mlp. The units of
// modules/model in its order.
struct ModelUnit {
  std::string name;  // "layers.3"
  Range layers;      // of the graph
  // Model FLOPs of one token. Input gradients cost a product and two thirds of attention's three parts, weight
  // gradients a product.
  PassTimes flops;
};
std::vector<ModelUnit> model_units(const Graph& graph);

// Cuts `costs` (0 or more each) into `parts` non-empty runs so that the largest sum is as small as it can be.
// Errors: Error (input) of all ranks, if there are fewer units than parts.
std::vector<Range> cut_by_cost(const std::vector<std::int64_t>& costs, std::int64_t parts);

// Cuts `units` units by a list of how many each chunk has. Errors: Error (input) of all ranks, if one is below 1 or
// they do not sum up.
std::vector<Range> cut_by_counts(const std::vector<std::int64_t>& counts, std::int64_t units);

// The FLOPs of each chunk as durations.
std::vector<PassTimes> chunk_flops(const std::vector<ModelUnit>& units, const std::vector<Range>& cuts);

}  // namespace fourfold
