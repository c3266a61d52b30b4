#include "model/describe.hpp"

#include <algorithm>
#include <map>
#include <string>

#include "deck/derive.hpp"

namespace fourfold {
namespace {

// D model width, F inner width, H heads, K KV heads, d head width, V vocabulary, T tokens.

LayerCost norm_cost(const std::string& name, const ModelDeck& model) {
  LayerCost cost;
  cost.name = name;
  cost.kind = LayerKind::norm;
  const bool layer = model.norm == NormKind::layer;
  cost.vector_parameters = (layer ? 2 : 1) * model.hidden;
  cost.kept_stream = model.hidden;       // its input; its output is kept by the layer that reads it
  cost.kept_statistics = layer ? 2 : 1;  // (mean and) reciprocal deviation
  return cost;
}

LayerCost attention_cost(const std::string& name, const ModelDeck& model) {
  LayerCost cost;
  cost.name = name;
  cost.kind = LayerKind::attention;
  const std::int64_t queries = model.heads * model.head_dim;       // H d
  const std::int64_t pairs = 2 * model.kv_heads * model.head_dim;  // K and V: 2 K d
  cost.matrix_parameters = (queries + pairs) * model.hidden + model.hidden * queries;
  if (model.bias != BiasKind::none) cost.vector_parameters += queries + pairs;
  if (model.bias == BiasKind::all) cost.vector_parameters += model.hidden;
  cost.product_elements = cost.matrix_parameters;
  cost.attention_flops = 2 * queries * model.sequence;  // 4 H d T for the square, half of it under the mask
  cost.kept_stream = model.hidden;                      // input of q, k and v
  cost.kept_features = queries + pairs + queries;       // q; k and v; output of the heads
  cost.kept_head_statistics = model.heads;              // log-sum-exp
  return cost;
}

// What a feed-forward layer is made of: matrices up (and gate) of F x D and down of D x F, and whether each has a bias.
struct FeedForwardShape {
  std::int64_t width = 0, inner = 0, ups = 1;
  bool bias = false;
  std::int64_t matrices() const { return (ups + 1) * inner * width; }
  std::int64_t vectors() const { return bias ? ups * inner + width : 0; }
};

FeedForwardShape feed_forward_shape(const ModelDeck& model, std::int64_t inner) {
  const bool stack = model.kind == ModelKind::residual;
  FeedForwardShape shape{model.hidden, inner};
  shape.ups = !stack && model.ffn.kind == FeedForwardKind::swiglu ? 2 : 1;
  shape.bias = stack ? model.mlp_bias : model.bias == BiasKind::all;
  return shape;
}

LayerCost feed_forward_cost(const std::string& name, const ModelDeck& model) {
  const FeedForwardShape shape = feed_forward_shape(model, model.ffn.hidden);
  LayerCost cost;
  cost.name = name;
  cost.kind = LayerKind::feed_forward;
  cost.matrix_parameters = shape.matrices();
  cost.vector_parameters = shape.vectors();
  cost.product_elements = cost.matrix_parameters;
  cost.kept_stream = model.hidden;
  cost.kept_features = (shape.ups + 1) * model.ffn.hidden;  // before and after the activation
  return cost;
}

// A router and E experts, of which top_k see a token; a shared expert that all tokens see, and its gate.
LayerCost experts_cost(const std::string& name, const ModelDeck& model) {
  const MoeDeck& moe = *model.moe;
  const FeedForwardShape expert = feed_forward_shape(model, moe.hidden);
  LayerCost cost;
  cost.name = name;
  cost.kind = LayerKind::experts;
  cost.matrix_parameters = moe.experts * model.hidden;  // router
  if (moe.shared_hidden > 0) {
    const FeedForwardShape shared = feed_forward_shape(model, moe.shared_hidden);
    cost.matrix_parameters += shared.matrices();
    cost.vector_parameters = shared.vectors();
  }
  if (moe.shared_gate) cost.matrix_parameters += model.hidden;
  cost.expert_parameters = moe.experts * (expert.matrices() + expert.vectors());
  cost.product_elements = cost.matrix_parameters + moe.top_k * expert.matrices();
  cost.kept_stream = model.hidden + moe.top_k * model.hidden;
  cost.kept_features = moe.top_k * (expert.ups + 1) * moe.hidden;
  cost.kept_statistics = moe.experts;  // router's probabilities
  return cost;
}

std::int64_t position_parameters(const ModelDeck& model) {
  const bool table = model.kind == ModelKind::transformer && model.positions == Positions::learned;
  return table ? model.sequence * model.hidden : 0;
}

LayerCost embedding_cost(const ModelDeck& model) {
  LayerCost cost;
  cost.name = "embedding";
  cost.kind = LayerKind::embedding;
  cost.matrix_parameters = model.vocab * model.hidden;
  cost.matrix_parameters += position_parameters(model);
  return cost;
}

LayerCost head_cost(const ModelDeck& model) {
  LayerCost cost;
  cost.name = "head";
  cost.kind = LayerKind::head;
  cost.product_elements = model.vocab * model.hidden;
  if (!model.tie_embeddings) cost.matrix_parameters = cost.product_elements;
  cost.kept_stream = model.hidden;
  cost.kept_features = model.vocab;                                      // logits
  cost.kept_statistics = model.loss == LossKind::cross_entropy ? 2 : 0;  // maximum and sum of the exponentials
  return cost;
}

Graph describe_transformer(const ModelDeck& model) {
  Graph graph;
  graph.tokens_per_sample = model.sequence;
  graph.layers.push_back(embedding_cost(model));
  for (std::int64_t i = 0; i < model.layers; ++i) {
    const std::string block = "layers." + std::to_string(i) + ".";
    const bool experts = has_experts(model, i);
    graph.layers.push_back(norm_cost(block + "attention_norm", model));
    graph.layers.push_back(attention_cost(block + "attention", model));
    graph.layers.push_back(norm_cost(block + "ffn_norm", model));
    graph.layers.push_back(experts ? experts_cost(block + "moe", model) : feed_forward_cost(block + "ffn", model));
  }
  graph.layers.push_back(norm_cost("final_norm", model));
  graph.layers.push_back(head_cost(model));
  return graph;
}

// Blocks h + W2 act(W1 h).
Graph describe_residual(const ModelDeck& model) {
  Graph graph;
  for (std::int64_t i = 0; i < model.layers; ++i) {
    const std::string block = "layers." + std::to_string(i) + ".";
    LayerCost cost =
        has_experts(model, i) ? experts_cost(block + "moe", model) : feed_forward_cost(block + "ffn", model);
    if (i + 1 == model.layers) {
      cost.kept_stream += model.hidden;  // the net's outputs
      if (model.loss == LossKind::cross_entropy) cost.kept_statistics += 2;
    }
    graph.layers.push_back(cost);
  }
  return graph;
}

Graph describe_mlp(const ModelDeck& model) {
  Graph graph;
  for (std::size_t i = 0; i + 1 < model.widths.size(); ++i) {
    const bool last = i + 2 == model.widths.size();
    LayerCost cost;
    cost.name = "mlp." + std::to_string(i);
    cost.matrix_parameters = model.widths[i + 1] * model.widths[i];
    if (model.mlp_bias) cost.vector_parameters = model.widths[i + 1];
    cost.product_elements = cost.matrix_parameters;
    cost.kept_stream = model.widths[i];        // its input
    cost.kept_features = model.widths[i + 1];  // before the activation, or the net's outputs
    if (last && model.loss == LossKind::cross_entropy) cost.kept_statistics = 2;
    graph.layers.push_back(cost);
  }
  return graph;
}

std::int64_t ceil_divide(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

struct ElementSizes {
  std::int64_t compute;     // weights and activations
  std::int64_t accumulate;  // gradients, moments, statistics
};

ElementSizes element_sizes(Precision precision) {
  switch (precision) {
    case Precision::fp64:
      return {8, 8};
    case Precision::fp32:
      return {4, 4};
    case Precision::bf16:
      break;
  }
  return {2, 4};
}

std::int64_t moments(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::sgd:
      return 0;
    case OptimizerKind::momentum:
    case OptimizerKind::lars:
      return 1;
    case OptimizerKind::adamw:
    case OptimizerKind::lamb:
      break;
  }
  return 2;
}

// Elements of a rank's reduction groups: in its buffers, padding included; in its part of the update; written in
// checkpoints, by the first of the ranks with the same elements.
struct GroupElements {
  std::int64_t held = 0, updated = 0, written_values = 0, written_states = 0;
  void add(const Deck& deck, std::int64_t elements, std::int64_t ranks, bool owner) {
    const std::int64_t parts = update_parts(deck, ranks);
    const std::int64_t part = ceil_divide(elements, parts);
    const bool sharded = deck.optimizer.shard.kind != UpdateShard::Kind::none;
    held += part * parts;
    updated += sharded ? part : elements;
    if (!owner) return;
    written_values += ceil_divide(elements, ranks);
    written_states += sharded ? ceil_divide(std::min(part, elements), ranks / parts) : ceil_divide(elements, ranks);
  }
};

// Ranks over which a reduction group's gradients are summed.
std::int64_t ranks_of(const GroupKey& key, const DenseShape& dense, const MoeShape& moe) {
  std::int64_t ranks = key.row_block * (key.tied_stage > 0 ? 2 : 1);
  if (key.has(Axis::data)) ranks *= dense.data;
  if (key.has(Axis::depth)) ranks *= dense.depth;
  if (key.has(Axis::row)) ranks *= dense.row;
  if (key.has(Axis::col)) ranks *= dense.col;
  if (key.has(Axis::replica)) ranks *= moe.replica;
  return ranks;
}

// What the optimizer keeps for a parameter, in elements of the accumulate type: moments, and the masters of bf16.
std::int64_t kept_by_optimizer(const Deck& deck) {
  return moments(deck.optimizer.kind) + (deck.precision == Precision::bf16 ? 1 : 0);
}

}  // namespace

Graph describe(const ModelDeck& model) {
  switch (model.kind) {
    case ModelKind::transformer:
      return describe_transformer(model);
    case ModelKind::mlp:
      return describe_mlp(model);
    case ModelKind::residual:
      return describe_residual(model);
    case ModelKind::embedding:
      break;
  }
  Graph graph;
  graph.tokens_per_sample = model.sequence;
  graph.layers = {embedding_cost(model), head_cost(model)};
  return graph;
}

std::int64_t activation_bytes(const Deck& deck, const Coordinates& here, std::int64_t unit, KeptFor what) {
  const ElementSizes bytes = element_sizes(deck.precision);
  const KeptElements kept = kept_elements(deck, here, deck.batch.micro, unit, what);
  return kept.compute * bytes.compute + kept.accumulate * bytes.accumulate + kept.bytes;
}

namespace {

// The biases on the routers' choices, in doubles; the first rank of a stage writes them.
std::int64_t selection_bias_bytes(const ModelDeck& model, const StagePart& part) {
  if (!model.moe || model.moe->balance.bias_rate == 0) return 0;
  std::int64_t layers = 0;
  for (const Range& chunk : part.chunks) {
    for (std::int64_t unit = chunk.begin; unit < chunk.end; ++unit) {
      const std::int64_t layer = model.kind == ModelKind::transformer ? unit - 1 : unit;
      if (layer >= 0 && layer < model.layers && has_experts(model, layer)) ++layers;
    }
  }
  return layers * model.moe->experts * static_cast<std::int64_t>(sizeof(double));
}

// One kind of numbers of a layer's moving experts at a time, in a buffer of what leaves and one of what comes. A swap
// takes one expert from a rank at most.
std::int64_t migration_bytes(const Deck& deck, const Coordinates& here, std::int64_t element) {
  const std::optional<MoeDeck>& moe = deck.model.moe;
  const int ranks = stage_shape(deck).moe.expert;
  if (!moe || moe->migration.every == 0 || ranks == 1) return 0;
  const std::int64_t held = part(moe->experts, ranks, here.expert).size();
  return 2 * std::min(held, moe->migration.budget) * expert_elements(deck, here) * element;
}

}  // namespace

MemoryPerRank memory_of_rank(const Deck& deck, const Coordinates& here, const StagePart& part,
                             std::int64_t activations) {
  const StageShape stage = stage_shape(deck);
  const DenseShape& dense = stage.dense;
  const MoeShape& moe = stage.moe;
  const ElementSizes bytes = element_sizes(deck.precision);
  GroupElements all;
  for (const auto& [group, elements] : held_parameters(deck, here, part)) {
    const bool owner = !part.tied_across_grids || part.first || group.first != -1;
    all.add(deck, elements, ranks_of(group.second, dense, moe), owner);
  }

  MemoryPerRank memory;
  memory.parameters = all.held * bytes.compute;
  memory.gradients = all.held * bytes.accumulate;
  memory.optimizer = all.updated * kept_by_optimizer(deck) * bytes.accumulate;
  if (deck.optimizer.kind == OptimizerKind::lamb) memory.update = all.updated * bytes.accumulate;
  memory.activations = activations;
  memory.migration = migration_bytes(deck, here, kept_by_optimizer(deck) > 0 ? bytes.accumulate : bytes.compute);
  memory.saved_copy = all.written_values * bytes.compute +
                      all.written_states * kept_by_optimizer(deck) * bytes.accumulate +
                      selection_bias_bytes(deck.model, part);
  return memory;
}

MemoryPerRank memory_of_rank(const Deck& deck, const Coordinates& here) {
  std::int64_t activations = 0;
  for (std::int64_t unit = 0; unit < unit_count(deck.model); ++unit) {
    activations += activation_bytes(deck, here, unit, KeptFor::backward);
  }
  return memory_of_rank(deck, here, whole_model(deck.model), activations);
}

// The first place on an axis has the longest parts, but for tokens under depth_splits: sequence. The first rank is the
// first place of both grids.
std::vector<Coordinates> fullest_places(const Deck& deck) {
  const ParallelDeck& parallel = deck.parallel;
  std::vector<Coordinates> places;
  if (parallel.depth_splits == DepthSplits::batch) return {Coordinates{}};
  if (deck.model.moe) {
    const ProcessGrid grid({stage_shape(deck)});
    for (int rank = 0; rank < grid.ranks(); ++rank) places.push_back(grid.coordinates(rank));
    return places;
  }
  for (Coordinates here; here.depth < parallel.dense.depth; ++here.depth) places.push_back(here);
  return places;
}

MemoryPerRank memory_per_rank(const Deck& deck) {
  MemoryPerRank most;
  std::int64_t saved_copy = 0;
  for (const Coordinates& here : fullest_places(deck)) {
    const MemoryPerRank memory = memory_of_rank(deck, here);
    if (memory.total() > most.total()) most = memory;
    saved_copy = std::max(saved_copy, memory.saved_copy);
  }
  most.saved_copy = saved_copy;
  return most;
}

std::int64_t checkpoint_bytes(const Deck& deck, const Graph& graph) {
  const ElementSizes bytes = element_sizes(deck.precision);
  std::int64_t biases = 0;  // of the selection
  for (const LayerCost& layer : graph.layers) {
    const bool balances = layer.kind == LayerKind::experts && deck.model.moe->balance.bias_rate > 0;
    if (balances) biases += deck.model.moe->experts;
  }
  return graph.parameters() * (bytes.compute + kept_by_optimizer(deck) * bytes.accumulate) +
         biases * static_cast<std::int64_t>(sizeof(double));
}

}  // namespace fourfold
