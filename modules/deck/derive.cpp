#include "deck/derive.hpp"

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
