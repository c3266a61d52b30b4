#include "model/held.hpp"

#include <cstddef>

#include "grid/cuts.hpp"

namespace fourfold {
namespace {

// The widths of a model on one rank, under the names of the shape legend: D model width, F inner width, V vocabulary,
// H heads, K KV heads, d head width.
struct Held {
  Held(const Deck& deck_in, const Coordinates& here_in)
      : deck(deck_in), model(deck.model), dense(deck.parallel.dense), here(here_in) {
    if (model.kind == ModelKind::mlp) return;
    width = over(Axis::col, model.hidden);
    vocab = over(Axis::row, model.vocab);
    if (model.kind == ModelKind::embedding) return;
    heads = over(Axis::row, model.heads);
    kv_heads = kv_heads_held(model.kv_heads, dense.row, here.row).size();
    inner = over(Axis::row, model.ffn.hidden);
    ups = model.ffn.kind == FeedForwardKind::swiglu ? 2 : 1;
  }

  int extent(Axis axis) const { return axis == Axis::row ? dense.row : axis == Axis::col ? dense.col : dense.depth; }
  std::int64_t over(Axis axis, std::int64_t length) const { return part(length, extent(axis), here[axis]).size(); }

  const Deck& deck;
  const ModelDeck& model;
  DenseShape dense;
  Coordinates here;
  std::int64_t width = 0, vocab = 0, heads = 0, kv_heads = 0, inner = 0, ups = 1;
};

// Widths of an mlp are cut over col and row in turn; matrix `layer` is of width `layer` + 1 by width `layer`.
Axis axis_of_width(std::size_t index) {
  return index % 2 == 0 ? Axis::col : Axis::row;
}

// --- parameters ---

struct Groups {
  const Held& held;
  std::map<GroupKey, std::int64_t> elements;

  // The flattened local matrix, fused segments side by side, is cut over depth.
  void matrix(std::int64_t rows, std::int64_t cols, int sharers = 1) {
    elements[GroupKey({Axis::data}, sharers)] += held.over(Axis::depth, rows * cols);
  }
  void bias(std::int64_t size, int sharers = 1) { elements[GroupKey({Axis::data, Axis::depth}, sharers)] += size; }
  // Norms and positions: vectors of the residual stream.
  void stream(std::int64_t size) {
    const AxisSet axes{Axis::data, Axis::depth};
    elements[held.deck.parallel.sequence_shard ? axes | AxisSet{Axis::row} : axes] += size;
  }
};

void block_parameters(Groups& groups, bool experts) {
  const Held& held = groups.held;
  const ModelDeck& model = held.model;
  const int sharers = kv_sharers(model, held.dense.row);
  const std::int64_t queries = held.heads * model.head_dim;
  const std::int64_t pairs = 2 * held.kv_heads * model.head_dim;
  groups.stream(2 * (model.norm == NormKind::layer ? 2 : 1) * held.width);
  groups.matrix(queries, held.width);
  groups.matrix(pairs, held.width, sharers);
  groups.matrix(held.width, held.over(Axis::row, model.heads * model.head_dim));
  if (!experts) {
    groups.matrix(held.ups * held.inner, held.width);
    groups.matrix(held.width, held.inner);
  }
  if (model.bias != BiasKind::none) {
    groups.bias(queries);
    groups.bias(pairs, sharers);
  }
  if (model.bias == BiasKind::all) {
    groups.bias(held.width);
    if (!experts) groups.bias(held.ups * held.inner + held.width);
  }
}

// --- activations ---

// The rows of a micro-batch on this rank, as layers/rows.hpp plans them.
struct RowCounts {
  std::int64_t tokens = 0;         // of a sequence, of this rank's coordinate
  std::int64_t stream_tokens = 0;  // of those, in its part of the residual stream
  std::int64_t key_tokens = 0;     // that attention reads
};

RowCounts count_rows(const Held& held) {
  const std::int64_t tokens = held.model.kind == ModelKind::mlp ? 1 : held.model.sequence;
  const ParallelDeck& parallel = held.deck.parallel;
  std::vector<Range> ranges = {{0, tokens}};
  if (parallel.depth_splits == DepthSplits::sequence && held.dense.depth > 1) {
    ranges = depth_token_ranges(tokens, held.dense.depth, held.here.depth);
  }
  RowCounts rows;
  rows.key_tokens = tokens;
  for (const Range& range : ranges) {
    rows.tokens += range.size();
    rows.stream_tokens += parallel.sequence_shard ? held.over(Axis::row, range.size()) : range.size();
  }
  return rows;
}

struct Kept {
  const Held& held;
  std::int64_t sequences;
  RowCounts rows;
  KeptElements elements;

  void norm() {
    const bool layer = held.model.norm == NormKind::layer;
    elements.compute += stream() * held.width;          // its input
    elements.accumulate += (layer ? 2 : 1) * stream();  // (mean and) reciprocal deviation
  }
  void attention() {
    const std::int64_t d = held.model.head_dim;
    const bool over_col = held.deck.parallel.attention_split == AttentionSplit::col && held.dense.col > 1;
    const ColPlace place = place_over_col(held.kv_heads, over_col ? held.dense.col : 1, over_col ? held.here.col : 0);
    const std::int64_t heads = part(held.heads, place.head_parts, place.head_part).size();
    const std::int64_t kv_heads = part(held.kv_heads, place.head_parts, place.head_part).size();
    const std::int64_t mine = part(sequences, place.sequence_parts, place.sequence_part).size();
    elements.compute += coordinate() * held.width;                    // input of q, k and v
    elements.compute += 2 * mine * rows.tokens * heads * d;           // q; the heads' output
    elements.compute += mine * rows.key_tokens * 2 * kv_heads * d;    // k and v
    if (over_col) elements.compute += coordinate() * held.heads * d;  // the output, gathered for the projection
    elements.accumulate += mine * rows.tokens * heads;                // log-sum-exp
  }
  void feed_forward() {
    elements.compute += coordinate() * (held.width + (held.ups + 1) * held.inner);  // input; before, after activation
  }
  void loss(std::int64_t outputs) {
    elements.compute += coordinate() * outputs;
    if (held.model.loss == LossKind::cross_entropy) elements.accumulate += 2 * coordinate();  // maximum, sum
  }
  std::int64_t coordinate() const { return sequences * rows.tokens; }
  std::int64_t stream() const { return sequences * rows.stream_tokens; }
};

}  // namespace

bool has_experts(const ModelDeck& model, std::int64_t layer) {
  return model.moe && (layer + 1) % model.moe->every == 0;
}

std::map<GroupKey, std::int64_t> held_parameters(const Deck& deck, const Coordinates& here) {
  const Held held(deck, here);
  const ModelDeck& model = deck.model;
  Groups groups{held, {}};
  if (model.kind == ModelKind::mlp) {
    for (std::size_t i = 0; i + 1 < model.widths.size(); ++i) {
      const std::int64_t outputs = held.over(axis_of_width(i + 1), model.widths[i + 1]);
      groups.matrix(outputs, held.over(axis_of_width(i), model.widths[i]));
      if (model.mlp_bias) groups.bias(outputs);
    }
    return groups.elements;
  }
  groups.matrix(held.vocab, held.width);
  if (!model.tie_embeddings) groups.matrix(held.vocab, held.width);
  if (model.kind == ModelKind::transformer) {
    if (model.positions == Positions::learned) groups.stream(model.sequence * held.width);
    for (std::int64_t i = 0; i < model.layers; ++i) {
      block_parameters(groups, has_experts(model, i));
    }
    groups.stream((model.norm == NormKind::layer ? 2 : 1) * held.width);
  }
  return groups.elements;
}

KeptElements kept_for_backward(const Deck& deck, const Coordinates& here, std::int64_t sequences) {
  const Held held(deck, here);
  const ModelDeck& model = deck.model;
  Kept kept{held, sequences, count_rows(held), {}};
  if (model.kind == ModelKind::mlp) {
    // The inputs as the first matrix reads them, where a rank does not read them all; each inner width before and after
    // the activation.
    const std::size_t last = model.widths.size() - 1;
    const std::int64_t inputs = held.over(Axis::col, model.widths[0]);
    if (inputs != model.widths[0]) kept.elements.compute += kept.coordinate() * inputs;
    for (std::size_t i = 1; i < last; ++i) {
      kept.elements.compute += 2 * kept.coordinate() * held.over(axis_of_width(i), model.widths[i]);
    }
    kept.loss(held.over(axis_of_width(last), model.widths[last]));
    return kept.elements;
  }
  if (model.kind == ModelKind::transformer) {
    for (std::int64_t i = 0; i < model.layers; ++i) {
      kept.norm();
      kept.attention();
      kept.norm();
      if (!has_experts(model, i)) kept.feed_forward();
    }
    kept.norm();
  }
  kept.elements.compute += kept.coordinate() * held.width;  // the head's input
  kept.loss(held.vocab);
  return kept.elements;
}

}  // namespace fourfold
