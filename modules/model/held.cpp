#include "model/held.hpp"

#include <cstddef>

#include "deck/derive.hpp"
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
    if (model.moe) experts(*model.moe);
    if (model.kind == ModelKind::residual) {
      inner = over(Axis::row, model.ffn.hidden);
      return;
    }
    vocab = over(Axis::row, model.vocab);
    if (model.kind == ModelKind::embedding) return;
    heads = over(Axis::row, model.heads);
    kv_heads = kv_heads_held(model.kv_heads, dense.row, here.row).size();
    inner = over(Axis::row, model.ffn.hidden);
    ups = model.ffn.kind == FeedForwardKind::swiglu ? 2 : 1;
  }

  void experts(const MoeDeck& moe) {
    const MoeShape grid = stage_shape(deck).moe;
    local_experts = part(moe.experts, grid.expert, here.expert).size();
    expert_inner = part(moe.hidden, grid.row, here.moe_row).size();
    expert_width = part(model.hidden, grid.col, here.moe_col).size();
    shared_inner = over(Axis::row, moe.shared_hidden);
  }
  std::int64_t expert_elements() const {
    const std::int64_t matrices = (ups + 1) * expert_inner * expert_width;
    return ffn_bias() ? matrices + ups * expert_inner + expert_width : matrices;
  }
  // Of the feed-forward layers of a block.
  bool ffn_bias() const { return model.kind == ModelKind::residual ? model.mlp_bias : model.bias == BiasKind::all; }

  int extent(Axis axis) const { return axis == Axis::row ? dense.row : axis == Axis::col ? dense.col : dense.depth; }
  std::int64_t over(Axis axis, std::int64_t length) const { return part(length, extent(axis), here[axis]).size(); }

  const Deck& deck;
  const ModelDeck& model;
  DenseShape dense;
  Coordinates here;
  std::int64_t width = 0, vocab = 0, heads = 0, kv_heads = 0, inner = 0, ups = 1;
  std::int64_t local_experts = 0, expert_inner = 0, expert_width = 0,
               shared_inner = 0;  // on the MoE grid, but the last
};

// Widths of an mlp are cut over col and row in turn; matrix `layer` is of width `layer` + 1 by width `layer`.
Axis axis_of_width(std::size_t index) {
  return index % 2 == 0 ? Axis::col : Axis::row;
}

// --- parameters ---

struct Groups {
  const Held& held;
  int chunk = 0;  // to which parameters are added
  HeldGroups elements;

  void add(GroupKey key, std::int64_t count) { elements[{chunk, key}] += count; }
  // The flattened local matrix, fused segments side by side, is cut over depth.
  void matrix(std::int64_t rows, std::int64_t cols, int sharers = 1) {
    add(GroupKey({Axis::data}, sharers), held.over(Axis::depth, rows * cols));
  }
  void bias(std::int64_t size, int sharers = 1) { add(GroupKey({Axis::data, Axis::depth}, sharers), size); }
  // Norms and positions: vectors of the residual stream.
  void stream(std::int64_t size) {
    const AxisSet axes{Axis::data, Axis::depth};
    add(held.deck.parallel.sequence_shard ? axes | AxisSet{Axis::row} : axes, size);
  }
  // The embedding's matrix, and that of a tied head.
  void table(bool shared, int tied_stage) {
    const int own = chunk;
    if (shared) chunk = -1;
    add(GroupKey({Axis::data}, 1, tied_stage), held.over(Axis::depth, held.vocab * held.width));
    chunk = own;
  }
};

void feed_forward_parameters(Groups& groups, std::int64_t inner) {
  const Held& held = groups.held;
  groups.matrix(held.ups * inner, held.width);
  groups.matrix(held.width, inner);
  if (held.ffn_bias()) groups.bias(held.ups * inner + held.width);
}

void experts_parameters(Groups& groups) {
  const Held& held = groups.held;
  const MoeDeck& moe = *held.model.moe;
  groups.add(AxisSet{Axis::data, Axis::depth, Axis::row, Axis::col}, moe.experts * held.model.hidden);  // the router
  groups.add(AxisSet{Axis::replica}, held.local_experts * held.expert_elements());
  if (moe.shared_hidden > 0) feed_forward_parameters(groups, held.shared_inner);
  if (moe.shared_gate) groups.stream(held.width);
}

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
  if (experts) {
    experts_parameters(groups);
  } else {
    feed_forward_parameters(groups, held.inner);
  }
  if (model.bias != BiasKind::none) {
    groups.bias(queries);
    groups.bias(pairs, sharers);
  }
  if (model.bias == BiasKind::all) groups.bias(held.width);
}

void unit_parameters(Groups& groups, std::int64_t unit) {
  const Held& held = groups.held;
  const ModelDeck& model = held.model;
  if (model.kind == ModelKind::mlp) {
    const auto i = static_cast<std::size_t>(unit);
    const std::int64_t outputs = held.over(axis_of_width(i + 1), model.widths[i + 1]);
    groups.matrix(outputs, held.over(axis_of_width(i), model.widths[i]));
    if (model.mlp_bias) groups.bias(outputs);
  } else if (model.kind == ModelKind::residual) {
    if (has_experts(model, unit)) {
      experts_parameters(groups);
    } else {
      feed_forward_parameters(groups, held.inner);
    }
  } else if (unit == 0) {
    if (model.kind == ModelKind::transformer && model.positions == Positions::learned) {
      groups.stream(model.sequence * held.width);
    }
  } else if (unit + 1 < unit_count(model)) {
    block_parameters(groups, has_experts(model, unit - 1));
  } else {
    if (!model.tie_embeddings) groups.matrix(held.vocab, held.width);
    if (model.kind == ModelKind::transformer) groups.stream((model.norm == NormKind::layer ? 2 : 1) * held.width);
  }
}

// --- activations ---

// Bytes of a place in a list, of a chosen expert, of a number that is a double whatever the compute type.
constexpr std::int64_t kIndex = 8, kChoice = 4, kDouble = 8;

bool is_block(const ModelDeck& model, std::int64_t unit) {
  return model.kind == ModelKind::transformer && unit > 0 && unit + 1 < unit_count(model);
}

// The rows of a micro-batch on this rank, as layers/rows.hpp plans them.
struct RowCounts {
  std::int64_t tokens = 0;         // of a sequence, of this rank's coordinate
  std::int64_t stream_tokens = 0;  // of those, in its part of the residual stream
  std::int64_t key_tokens = 0;     // that attention reads
  std::size_t ranges = 1;          // of tokens
};

RowCounts count_rows(const Held& held) {
  const std::int64_t tokens = takes_rows(held.model.kind) ? 1 : held.model.sequence;
  const ParallelDeck& parallel = held.deck.parallel;
  std::vector<Range> ranges = {{0, tokens}};
  if (parallel.depth_splits == DepthSplits::sequence && held.dense.depth > 1) {
    ranges = depth_token_ranges(tokens, held.dense.depth, held.here.depth);
  }
  RowCounts rows;
  rows.key_tokens = tokens;
  rows.ranges = ranges.size();
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
  bool for_weights;  // each layer its input and its output's gradient
  KeptElements elements = {};

  void norm() {
    const bool layer = held.model.norm == NormKind::layer;
    elements.compute += (for_weights ? 2 : 1) * stream() * held.width;
    elements.accumulate += (layer ? 2 : 1) * stream();  // (mean and) reciprocal deviation
  }
  void attention() {
    const std::int64_t d = held.model.head_dim;
    const bool over_col = held.deck.parallel.attention_split == AttentionSplit::col && held.dense.col > 1;
    const ColPlace place = place_over_col(held.kv_heads, over_col ? held.dense.col : 1, over_col ? held.here.col : 0);
    const std::int64_t heads = part(held.heads, place.head_parts, place.head_part).size();
    const std::int64_t kv_heads = part(held.kv_heads, place.head_parts, place.head_part).size();
    const std::int64_t mine = part(sequences, place.sequence_parts, place.sequence_part).size();
    elements.accumulate += mine * rows.tokens * heads;  // log-sum-exp
    if (for_weights) {                                  // of q, of k and v, and of the output
      elements.compute += coordinate() * 2 * (held.width + (held.heads + held.kv_heads) * d);
      return;
    }
    elements.compute += coordinate() * held.width;                    // input of q, k and v
    elements.compute += 2 * mine * rows.tokens * heads * d;           // q; the heads' output
    elements.compute += mine * rows.key_tokens * 2 * kv_heads * d;    // k and v
    if (over_col) elements.compute += coordinate() * held.heads * d;  // the output, gathered for the projection
  }
  void feed_forward() {
    // Input; before and after the activation, or the gradient before it and what is after; the output's gradient.
    elements.compute += coordinate() * ((for_weights ? 2 : 1) * held.width + (held.ups + 1) * held.inner);
  }
  // What a mixture of experts keeps, with as many pairs of token and expert to each expert. x_held: its input is kept
  // by somebody else.
  void experts(bool x_held) {
    const MoeDeck& moe = *held.model.moe;
    const MoeShape grid = stage_shape(held.deck).moe;
    const std::int64_t tokens = door_tokens(), pairs = tokens * moe.top_k;
    const std::int64_t routed = expert_rows();
    const bool sharded = held.deck.parallel.sequence_shard && held.dense.row > 1;
    const bool copied = held.dense.col > 1 || (held.dense.row > 1 && !sharded) || moe.jitter > 0 || rows.ranges > 1;
    if (copied) elements.compute += tokens * held.model.hidden;  // the router's input
    if (!x_held && (!copied || moe.shared_gate || (moe.shared_hidden > 0 && !sharded))) {
      elements.compute += stream() * held.width;
    }
    if (moe.shared_hidden > 0) {  // as feed_forward()
      elements.compute += coordinate() * (held.ups + 1) * held.shared_inner;
      if (sharded) elements.compute += coordinate() * held.width;
      if (for_weights) elements.compute += coordinate() * held.width;
    }
    if (moe.shared_gate) {
      elements.accumulate += stream();  // its logit
      elements.compute += for_weights ? stream() : stream() * held.width;
    }
    elements.accumulate += tokens * (moe.top_k + moe.experts + 1);  // weights, logits, their log-sum-exp
    decision();
    // The tokens' numbers; where each pair is among those that leave, and the other way; where the rows of an expert
    // came from.
    elements.bytes += (tokens + 2 * pairs) * kIndex;
    if (rows.ranges > 1 && sequences > 1) elements.bytes += stream() * kIndex;  // rows by token
    if (grid.expert * grid.row * grid.col > 1) elements.bytes += routed * kIndex;
    if (moe.dispatcher == DispatcherKind::allgather && grid.expert > 1) {
      elements.bytes += routed / (grid.row * grid.col) * kIndex;
    }
    elements.compute += routed * (held.expert_width + held.expert_inner);  // the experts' input, after the activation
    if (for_weights) {
      elements.compute += tokens * moe.experts + routed * (held.ups * held.expert_inner + held.expert_width);
    } else {
      elements.compute += routed * held.ups * held.expert_inner;                             // before the activation
      if (moe.permute == PermuteKind::plain) elements.compute += pairs * held.model.hidden;  // the experts' outputs
    }
  }
  // Which experts each token goes to, and the gradient of the balancing loss.
  void decision() {
    const MoeDeck& moe = *held.model.moe;
    elements.bytes += door_tokens() * moe.top_k * kChoice;
    if (moe.balance.aux == 0 || moe.balance.scope == BalanceScopeKind::global_batch) return;
    const std::int64_t scopes = moe.balance.scope == BalanceScopeKind::sequence ? sequences : 1;
    elements.bytes += scopes * moe.experts * kDouble;
  }
  // Of this rank, once each token is on one.
  std::int64_t door_tokens() const {
    const bool sharded = held.deck.parallel.sequence_shard;
    const std::int64_t parts = std::int64_t{held.dense.col} * (sharded ? 1 : held.dense.row);
    return part(stream(), parts, held.here.col + (sharded ? 0 : held.dense.col * held.here.row)).size();
  }
  // Pairs that come to this rank's experts, where all experts get as many.
  std::int64_t expert_rows() const {
    const MoeDeck& moe = *held.model.moe;
    const std::int64_t tokens = held.deck.batch.global / held.deck.batch.micro_batches *
                                (takes_rows(held.model.kind) ? 1 : held.model.sequence);
    const std::int64_t replicas = stage_shape(held.deck).moe.replica;
    return (tokens * moe.top_k * held.local_experts + replicas * moe.experts - 1) / (replicas * moe.experts);
  }
  void loss(std::int64_t outputs) {
    elements.compute += coordinate() * outputs;
    if (!for_weights && held.model.loss == LossKind::cross_entropy)
      elements.accumulate += 2 * coordinate();  // maximum, sum
  }
  // Matrix `layer` of an mlp: its input (of the first: where this rank does not read all of it), and its output before
  // the activation.
  void matrix(std::size_t layer) {
    const auto& widths = held.model.widths;
    const std::int64_t inputs = held.over(axis_of_width(layer), widths[layer]);
    if (layer > 0 || inputs != widths[0]) elements.compute += coordinate() * inputs;
    const std::int64_t outputs = held.over(axis_of_width(layer + 1), widths[layer + 1]);
    if (layer + 2 == widths.size()) {
      loss(outputs);
    } else {
      elements.compute += coordinate() * outputs;
    }
  }
  void unit(std::int64_t number) {
    const ModelDeck& model = held.model;
    if (model.kind == ModelKind::mlp) {
      matrix(static_cast<std::size_t>(number));
    } else if (model.kind == ModelKind::residual) {
      if (has_experts(model, number)) {
        experts(number == 0);
      } else {
        if (number > 0 || held.width != model.hidden) elements.compute += coordinate() * held.width;
        elements.compute += 2 * coordinate() * held.inner;  // as feed_forward()
      }
      if (for_weights || number + 1 == model.layers) elements.compute += coordinate() * held.width;
      if (number + 1 == model.layers && !for_weights && model.loss == LossKind::cross_entropy) {
        elements.accumulate += 2 * coordinate();
      }
    } else if (number + 1 == unit_count(model)) {
      if (model.kind == ModelKind::transformer) norm();
      elements.compute += coordinate() * held.width;  // the projection's input
      loss(held.vocab);
    } else if (number == 0) {
      if (for_weights) elements.compute += stream() * held.width;
    } else {
      norm();
      attention();
      norm();
      second_half(number - 1);
    }
  }
  void second_half(std::int64_t layer) {
    if (has_experts(held.model, layer)) {
      experts(false);
    } else {
      feed_forward();
    }
  }
  // The input of a unit, of which a first one has none of its own; where it recomputes that is all it keeps.
  void input(std::int64_t number) {
    const ModelDeck& model = held.model;
    if (model.kind == ModelKind::mlp) {
      const auto layer = static_cast<std::size_t>(number);
      if (number > 0) elements.compute += coordinate() * held.over(axis_of_width(layer), model.widths[layer]);
    } else if (number > 0) {
      elements.compute += (model.kind == ModelKind::residual ? coordinate() : stream()) * held.width;
    }
  }
  // A block of which sublayers are run again: of those, what their norm reads.
  void block_at_rest(std::int64_t number) {
    const ActivationsDeck& activations = held.deck.parallel.activations;
    const auto sublayer = [&](const char* name, const auto& whole) {
      if (recomputes_sublayer(activations, name)) {
        elements.compute += stream() * held.width;
      } else {
        norm();
        whole();
      }
    };
    sublayer("attention", [&] { attention(); });
    sublayer("ffn", [&] { second_half(number - 1); });
    if (recomputes_sublayer(activations, "ffn") && has_experts(held.model, number - 1)) decision();
  }
  // Between forward and backward, by the deck's flags.
  void at_rest(std::int64_t number, Keeping keeping) {
    if (keeping == Keeping::recompute) {
      input(number);
      const std::int64_t layer = number - first_layer_unit(held.model);
      if (layer >= 0 && layer < layer_count(held.model) && has_experts(held.model, layer)) decision();
    } else if (is_block(held.model, number)) {
      block_at_rest(number);
    } else {
      unit(number);
    }
  }
  // The gradient of a unit's output.
  void gradient(std::int64_t number) {
    const ModelDeck& model = held.model;
    if (number + 1 == unit_count(model)) return;
    if (model.kind == ModelKind::mlp) {
      const auto outputs = static_cast<std::size_t>(number) + 1;
      elements.compute += coordinate() * held.over(axis_of_width(outputs), model.widths[outputs]);
    } else {
      elements.compute += (model.kind == ModelKind::residual ? coordinate() : stream()) * held.width;
    }
  }
  std::int64_t coordinate() const { return sequences * rows.tokens; }
  std::int64_t stream() const { return sequences * rows.stream_tokens; }
};

}  // namespace

bool has_experts(const ModelDeck& model, std::int64_t layer) {
  return model.moe && (layer + 1) % model.moe->every == 0;
}

std::int64_t expert_elements(const Deck& deck, const Coordinates& here) {
  return Held(deck, here).expert_elements();
}

HeldGroups held_parameters(const Deck& deck, const Coordinates& here, const StagePart& part) {
  const Held held(deck, here);
  const ModelDeck& model = deck.model;
  const bool has_table = model.kind == ModelKind::transformer || model.kind == ModelKind::embedding;
  const std::int64_t head = unit_count(model) - 1;
  Groups groups{held, 0, {}};
  bool table = false;
  for (const Range& chunk : part.chunks) {
    for (std::int64_t unit = chunk.begin; unit < chunk.end; ++unit) {
      if (has_table && (unit == 0 || (model.tie_embeddings && unit == head && !table))) {
        groups.table(shares_table(model, chunk), part.tied_across_grids ? 0 : part.tied_stage);
        table = true;
      }
      unit_parameters(groups, unit);
    }
    ++groups.chunk;
  }
  return groups.elements;
}

bool runs_again(const Deck& deck, std::int64_t unit, Keeping keeping) {
  return keeping == Keeping::recompute || (is_block(deck.model, unit) && !deck.parallel.activations.sublayers.empty());
}

KeptElements kept_elements(const Deck& deck, const Coordinates& here, std::int64_t sequences, std::int64_t unit,
                           KeptFor what) {
  const Held held(deck, here);
  Kept kept{held, sequences, count_rows(held), what == KeptFor::weights};
  if (what == KeptFor::backward) {
    kept.at_rest(unit, keeping_of_units(deck)[static_cast<std::size_t>(unit)]);
  } else if (what == KeptFor::gradient) {
    kept.gradient(unit);
  } else {
    kept.unit(unit);
  }
  return kept.elements;
}

}  // namespace fourfold
