#include "deck/derive.hpp"

#include <algorithm>
#include <charconv>
#include <limits>

#include "grid/partition.hpp"

namespace fourfold {
namespace {

constexpr std::int64_t kDefaultGlobal = 32;

void derive_batch(BatchDeck& batch, std::int64_t coordinates) {
  if (batch.global == 0) batch.global = capped_product({batch.micro, coordinates, batch.micro_batches});
  if (batch.micro == 0 && batch.micro_batches == 0) batch.micro_batches = 1;
  if (batch.micro == 0) {
    const std::int64_t samples = capped_product({coordinates, batch.micro_batches});
    if (batch.global % samples == 0) batch.micro = batch.global / samples;
  }
  if (batch.micro_batches == 0) {
    const std::int64_t samples = capped_product({coordinates, batch.micro});
    if (batch.global % samples == 0) batch.micro_batches = batch.global / samples;
  }
}

// n / divisor as an axis extent; 0 if that does not divide or does not fit.
int extent(std::int64_t n, std::int64_t divisor) {
  if (divisor < 1 || n < divisor || n % divisor != 0 || n / divisor > (std::int64_t{1} << 20)) return 0;
  return static_cast<int>(n / divisor);
}

}  // namespace

std::int64_t capped_product(std::initializer_list<std::int64_t> factors) {
  std::int64_t product = 1;
  for (const std::int64_t factor : factors) {
    if (__builtin_mul_overflow(product, factor, &product)) return std::numeric_limits<std::int64_t>::max();
  }
  return product;
}

std::int64_t unit_count(const ModelDeck& model) {
  switch (model.kind) {
    case ModelKind::transformer:
      return model.layers + 2;
    case ModelKind::mlp:
      return std::ssize(model.widths) - 1;
    case ModelKind::residual:
      return model.layers;
    case ModelKind::embedding:
      break;
  }
  return 2;
}

std::int64_t layer_count(const ModelDeck& model) {
  switch (model.kind) {
    case ModelKind::transformer:
    case ModelKind::residual:
      return model.layers;
    case ModelKind::mlp:
      return std::ssize(model.widths) - 1;
    case ModelKind::embedding:
      break;
  }
  return 0;
}

std::int64_t first_layer_unit(const ModelDeck& model) {
  return model.kind == ModelKind::transformer ? 1 : 0;
}

std::optional<Range> named_units(const ModelDeck& model, const std::string& entry) {
  if (entry == "head") {
    const std::int64_t head = unit_count(model) - 1;
    return takes_rows(model.kind) ? std::nullopt : std::optional(Range{head, head + 1});
  }
  const auto number = [](const std::string& digits) {
    std::int64_t value = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return error == std::errc() && end == digits.data() + digits.size() ? value : -1;
  };
  const std::size_t dash = entry.find('-');
  const std::int64_t first = number(entry.substr(0, dash));
  const std::int64_t last = dash == std::string::npos ? first : number(entry.substr(dash + 1));
  if (first < 0 || last < first || last >= layer_count(model)) return std::nullopt;
  return Range{first_layer_unit(model) + first, first_layer_unit(model) + last + 1};
}

std::vector<Keeping> keeping_of_units(const Deck& deck) {
  const ModelDeck& model = deck.model;
  const ActivationsDeck& activations = deck.parallel.activations;
  std::vector<Keeping> units(static_cast<std::size_t>(unit_count(model)), Keeping::keep);
  const auto set = [&](const Range& range, Keeping keeping) {
    for (std::int64_t unit = range.begin; unit < range.end; ++unit) units[static_cast<std::size_t>(unit)] = keeping;
  };
  set({first_layer_unit(model), first_layer_unit(model) + layer_count(model)}, activations.rest);
  const auto set_all = [&](const std::vector<std::string>& entries, Keeping keeping) {
    for (const std::string& entry : entries) {
      if (const auto range = named_units(model, entry)) set(*range, keeping);
    }
  };
  set_all(activations.keep, Keeping::keep);
  set_all(activations.recompute, Keeping::recompute);
  set_all(activations.offload, Keeping::offload);
  return units;
}

bool recomputes_sublayer(const ActivationsDeck& activations, const std::string& sublayer) {
  return std::find(activations.sublayers.begin(), activations.sublayers.end(), sublayer) != activations.sublayers.end();
}

std::int64_t input_width(const ModelDeck& model) {
  return model.kind == ModelKind::mlp ? model.widths.front() : model.hidden;
}

std::int64_t output_width(const ModelDeck& model) {
  return model.kind == ModelKind::mlp ? model.widths.back() : model.hidden;
}

void derive_sizes(Deck& deck) {
  ModelDeck& model = deck.model;
  if (model.kv_heads == 0) model.kv_heads = model.heads;
  if (model.head_dim == 0 && model.heads > 0 && model.hidden % model.heads == 0) {
    model.head_dim = model.hidden / model.heads;
  }
  const bool blocks = model.kind == ModelKind::transformer || model.kind == ModelKind::residual;
  if (blocks && model.ffn.hidden == 0) model.ffn.hidden = 4 * model.hidden;
  if (model.moe && model.moe->hidden == 0) model.moe->hidden = model.ffn.hidden;
  if (model.kind == ModelKind::embedding && model.sequence == 0) model.sequence = 1;
  BatchDeck& batch = deck.batch;
  if (batch.global == 0 && (batch.micro == 0 || batch.micro_batches == 0)) batch.global = kDefaultGlobal;
}

void derive_grid(Deck& deck, std::optional<std::int64_t> ranks) {
  DenseShape& dense = deck.parallel.dense;
  BatchDeck& batch = deck.batch;
  if (!deck.parallel.stage_grids.empty()) {
    if (batch.micro_batches == 0) batch.micro_batches = 1;
    return;
  }
  if (dense.data == 0 && ranks) {
    dense.data = extent(*ranks, capped_product({deck.parallel.stages, dense.depth, dense.row, dense.col}));
  } else if (dense.data == 0 && batch.global > 0 && batch.micro > 0 && batch.micro_batches > 0) {
    const int depth = deck.parallel.depth_splits == DepthSplits::batch ? dense.depth : 1;
    dense.data = extent(batch.global, capped_product({batch.micro, batch.micro_batches, depth}));
  }
  if (dense.data == 0) return;
  const std::int64_t size = capped_product({dense.data, dense.depth, dense.row, dense.col});
  if (size > std::numeric_limits<int>::max()) return;
  derive_batch(batch, deck.parallel.coordinates());
  if (deck.comm.gradient == GradientAlgorithm::torus2d && deck.comm.model_stride == 0) {
    deck.comm.model_stride = weight_parts(dense);
  }
  if (!deck.parallel.moe) deck.parallel.moe = MoeShape{0, 1, 1, 1};
  MoeShape& moe = *deck.parallel.moe;
  if (moe.replica == 0) moe.replica = extent(dense.size(), capped_product({moe.expert, moe.row, moe.col}));
}

std::optional<std::int64_t> deck_ranks(const Deck& deck) {
  const ParallelDeck& parallel = deck.parallel;
  if (!parallel.stage_grids.empty()) {
    std::int64_t ranks = 0;
    for (const DenseShape& grid : parallel.stage_grids) {
      const std::int64_t size = capped_product({grid.data, grid.depth, grid.row, grid.col});
      if (__builtin_add_overflow(ranks, size, &ranks)) return std::numeric_limits<std::int64_t>::max();
    }
    return ranks;
  }
  if (parallel.dense.data == 0) return std::nullopt;
  const DenseShape& dense = parallel.dense;
  return capped_product({deck.parallel.stages, dense.data, dense.depth, dense.row, dense.col});
}

std::int64_t weight_parts(const DenseShape& dense) {
  return capped_product({dense.depth, dense.row, dense.col});
}

std::int64_t update_parts(const Deck& deck, std::int64_t ranks) {
  switch (deck.optimizer.shard.kind) {
    case UpdateShard::Kind::data:
      return ranks;
    case UpdateShard::Kind::data_partial:
      return deck.optimizer.shard.count;
    case UpdateShard::Kind::none:
      break;
  }
  return deck.comm.gradient == GradientAlgorithm::flat ? 1 : ranks;
}

StageShape stage_shape(const Deck& deck, int stage) {
  const DenseShape& dense = deck.parallel.grid(stage);
  const MoeShape replicas{static_cast<int>(dense.size()), 1, 1, 1};
  return StageShape{dense, deck.parallel.moe.value_or(replicas)};
}

Deck deck_of_place(const Deck& deck, const Coordinates& here) {
  if (deck.parallel.stage_grids.empty()) return deck;
  Deck own = deck;
  ParallelDeck& parallel = own.parallel;
  const StageShape shape = stage_shape(deck, here.stage);
  parallel.stage_grids.clear();
  parallel.dense = shape.dense;
  parallel.moe = shape.moe;
  const bool samples = parallel.depth_splits == DepthSplits::batch;  // are split over depth too
  const std::int64_t index = samples ? std::int64_t{here.data} * shape.dense.depth + here.depth : here.data;
  own.batch.micro = part(deck.batch.global / deck.batch.micro_batches, parallel.coordinates(), index).size();
  return own;
}

}  // namespace fourfold
