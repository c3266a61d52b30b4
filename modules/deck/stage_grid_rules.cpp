// Rules about stages with grids of their own: parallel.stage_grids, and what it does not go with.
#include <limits>

#include "deck/derive.hpp"
#include "deck/rules.hpp"

namespace fourfold {
namespace {

constexpr std::int64_t kMostRanks = std::numeric_limits<int>::max();

std::string entry_path(std::size_t stage) {
  return "parallel.stage_grids[" + number(static_cast<std::int64_t>(stage) + 1) + "]";
}

// Keys that say the same another way, or have no meaning beside it.
void neighbour_rules(const Check& check) {
  for (const std::string block : {"parallel.dense", "parallel.moe"}) {
    const auto& given = check.places.given;  // overrides give keys without their block
    if (std::any_of(given.begin(), given.end(), [&](const auto& key) { return key.first.starts_with(block + "."); })) {
      check.add(block, "stands beside parallel.stage_grids, which gives each stage its grid; take one of the two away");
    }
  }
  if (check.given("batch.micro") && check.sound({"batch.micro"})) {
    check.add(
        "batch.micro",
        "counts the sequences of a coordinate, and stages with grids of their own (parallel.stage_grids) may have "
        "different numbers of those; take it away, and give batch.micro_batches");
  }
  if (check.deck.comm.gradient == GradientAlgorithm::torus2d && check.sound({"comm.gradient.algorithm"})) {
    check.add(
        "comm.gradient.algorithm",
        "torus2d is a mesh of the ranks of every stage, and parallel.stage_grids gives stages of their own sizes; "
        "legal: flat, two_level");
  }
}

void count_rule(const Check& check) {
  const ParallelDeck& parallel = check.deck.parallel;
  const std::int64_t stages = std::ssize(parallel.stage_grids);
  if (!check.sound({"parallel.stages"}) || parallel.stages == stages) return;
  check.add("parallel.stages", number(parallel.stages) + " is not the number of grids in parallel.stage_grids; type " +
                                   number(stages) + ", or leave it out");
}

void rank_rule(const Check& check) {
  const ParallelDeck& parallel = check.deck.parallel;
  const std::int64_t ranks = deck_ranks(check.deck).value_or(0);
  if (ranks > kMostRanks) {
    check.add("parallel.stage_grids", "has more than " + number(kMostRanks) + " ranks");
    return;
  }
  if (!check.ranks || *check.ranks == ranks) return;
  std::string sum;
  for (const DenseShape& grid : parallel.stage_grids) sum += (sum.empty() ? "" : " + ") + number(grid.size());
  const std::int64_t stages = std::ssize(parallel.stage_grids);
  std::string help = "; it needs a rank a stage at least";
  if (*check.ranks >= stages && stages <= 16) {
    std::string grids;
    for (std::int64_t s = 0; s < stages; ++s) {
      grids += (s > 0 ? ", " : "") + std::string("{data: ") +
               number(*check.ranks / stages + (s < *check.ranks % stages ? 1 : 0)) + "}";
    }
    help = "; choose grids that sum up to that, such as [" + grids + "]";
  }
  check.add("parallel.stage_grids",
            sum + (stages > 1 ? " = " + number(ranks) : "") + " ranks, but there are " + number(*check.ranks) + help);
}

void head_rules(const Check& check) {
  const ModelDeck& model = check.deck.model;
  if (model.kind != ModelKind::transformer || !check.sound({"model.kind", "model.heads", "model.kv_heads"})) return;
  std::vector<std::int64_t> legal = divisors(model.heads);
  std::erase_if(legal, [&](std::int64_t row) { return !kv_heads_fit(model.kv_heads, row); });
  const std::vector<DenseShape>& grids = check.deck.parallel.stage_grids;
  for (std::size_t stage = 0; stage < grids.size(); ++stage) {
    const std::int64_t row = grids[stage].row;
    if (model.heads % row == 0 && kv_heads_fit(model.kv_heads, row)) continue;
    check.add(entry_path(stage), "row " + number(row) + " must divide model.heads " + number(model.heads) +
                                     ", and divide model.kv_heads " + number(model.kv_heads) +
                                     " or be a multiple of it; " + choose(legal, row));
  }
}

void shard_rule(const Check& check) {
  const UpdateShard& shard = check.deck.optimizer.shard;
  if (shard.kind != UpdateShard::Kind::data_partial || !check.sound({"optimizer.shard", "comm.gradient.algorithm"})) {
    return;
  }
  if (check.deck.comm.gradient != GradientAlgorithm::flat) {
    check.add("optimizer.shard", "data_partial has two levels of its own; type data, or comm.gradient.algorithm: flat");
    return;
  }
  const std::vector<DenseShape>& grids = check.deck.parallel.stage_grids;
  for (std::size_t stage = 0; stage < grids.size(); ++stage) {
    if (grids[stage].data % shard.count == 0) continue;
    check.add("optimizer.shard", "data_partial " + number(shard.count) + " must divide data " +
                                     number(grids[stage].data) + " of " + entry_path(stage) + "; " +
                                     choose(divisors(grids[stage].data), shard.count));
    return;
  }
}

void batch_rule(const Check& check) {
  const BatchDeck& batch = check.deck.batch;
  if (!check.sound({"batch.global", "batch.micro_batches"}) || batch.global % batch.micro_batches == 0) return;
  check.add("batch.micro_batches", number(batch.micro_batches) + " must divide batch.global " + number(batch.global) +
                                       (check.given("batch.global") ? "" : " (the default)") + "; " +
                                       choose(divisors(batch.global), batch.micro_batches));
}

}  // namespace

void stage_grid_rules(const Check& check) {
  neighbour_rules(check);
  count_rule(check);
  rank_rule(check);
  head_rules(check);
  shard_rule(check);
  batch_rule(check);
}

}  // namespace fourfold
