// A model's units, and how a chain of them is cut into chunks: contiguous, none empty, every unit once.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "graph/graph.hpp"
#include "grid/partition.hpp"
#include "schedule/timeline.hpp"

namespace fourfold {

// FLOPs of a forward pass of one token: of products, which all ranks of a stage share, and of attention, which those of
// col repeat unless they are told to share it. Input gradients cost the products again and attention twice, weight
// gradients the products.
struct ForwardWork {
  std::int64_t products = 0, attention = 0;
  std::int64_t total() const { return products + attention; }
  PassTimes flops() const { return {products + attention, products + 2 * attention, products}; }
  ForwardWork& operator+=(const ForwardWork& other);
};

// What one chunk has at least: the embedding, a block, the head with the final norm, a matrix of an mlp. The units of
// modules/model in its order.
struct ModelUnit {
  std::string name;  // "layers.3"
  Range layers;      // of the graph
  ForwardWork work;  // model FLOPs
};
std::vector<ModelUnit> model_units(const Graph& graph);
ForwardWork work_of(const std::vector<ModelUnit>& units, const Range& cut);

// `part` of `whole`: of a stage's work on a micro-batch, what the rank does that has most.
struct Share {
  std::int64_t part = 1, whole = 1;
  bool operator==(const Share&) const = default;
};
struct RankShares {
  Share products, attention;
  bool operator==(const RankShares&) const = default;
};

// FLOPs of the rank that has most, in ticks of 1/ticks_per_flop() FLOP of a token.
class RankTimes {
 public:
  RankTimes() = default;
  // `stages`: of each. `most_flops`: what a sum of these times comes to at most, of ranks that share nothing. Exact
  // while the shares have a small common denominator and such a sum leaves room for it; else rounded up to FLOPs.
  RankTimes(std::vector<RankShares> stages, double most_flops);
  std::int64_t ticks_per_flop() const { return ticks_; }
  bool alike() const;  // all stages
  PassTimes operator()(int stage, const ForwardWork& work) const;

 private:
  std::int64_t ticks(std::int64_t flops, const Share& share) const;
  std::vector<RankShares> stages_;
  std::int64_t ticks_ = 1;
};

// What a chunk costs if it has these units; 0 or more, and more units never cost less.
using ChunkCost = std::function<std::int64_t(std::int64_t chunk, const Range& units)>;

// Cuts `units` units into `chunks` non-empty runs so that the largest cost is as small as it can be, and of such cuts
// the sum of the squares of all costs. Where that leaves a choice the first chunks get more: their first backwards wait
// longest, and other forwards fill that time. `alike`: a run costs the same on every chunk. Errors: Error (input) of
// all ranks, if there are fewer units than chunks.
std::vector<Range> cut_by_cost(std::int64_t units, std::int64_t chunks, const ChunkCost& cost, bool alike = false);
// `costs`: of each unit, on whatever chunk.
std::vector<Range> cut_by_cost(const std::vector<std::int64_t>& costs, std::int64_t chunks);
// The cost of units on the stage of each chunk: forward and backward.
std::vector<Range> cut_by_cost(const std::vector<ModelUnit>& units, const std::vector<int>& stage_of_chunk,
                               const RankTimes& times);

// Cuts `units` units by a list of how many each chunk has. Errors: Error (input) of all ranks, if one is below 1 or
// they do not sum up.
std::vector<Range> cut_by_counts(const std::vector<std::int64_t>& counts, std::int64_t units);

}  // namespace fourfold
