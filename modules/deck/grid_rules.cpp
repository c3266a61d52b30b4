// Rules about ranks: grids, batches, sums of gradients, the machine.
#include <cmath>
#include <limits>

#include "deck/derive.hpp"
#include "deck/key_line.hpp"
#include "deck/rules.hpp"
#include "grid/process_grid.hpp"

namespace fourfold {
namespace {

constexpr std::int64_t kMostRanks = std::numeric_limits<int>::max();

// --- grid ---

std::string grid_text(std::int64_t stages, const DenseShape& grid) {
  return "stages " + number(stages) + " x data " + number(grid.data) + " x depth " + number(grid.depth) + " x row " +
         number(grid.row) + " x col " + number(grid.col);
}

struct ListedGrid {
  double distance;
  std::int64_t stages;
  DenseShape dense;
};

// Grids of `ranks` ranks that this model allows, and a batch whose samples divide by the coordinates times
// `parts_of_batch`, those most like the deck's first; of other stages than the deck's only where its stages do not
// divide the ranks.
std::vector<ListedGrid> grids_of(const Check& check, std::int64_t ranks, std::int64_t parts_of_batch) {
  const Deck& deck = check.deck;
  const ModelDeck& model = deck.model;
  const ParallelDeck& asked = deck.parallel;
  const bool heads_known = model.kind == ModelKind::transformer && check.sound({"model.heads", "model.kv_heads"});
  const UpdateShard& shard = deck.optimizer.shard;
  const std::int64_t shards = shard.kind == UpdateShard::Kind::data_partial ? shard.count : 1;
  const auto change = [](double a, double b) { return a == b ? 0.0 : 1.0 + 0.1 * std::abs(std::log2(a / b)); };
  std::vector<ListedGrid> grids;
  for (const std::int64_t stages : divisors(ranks)) {
    if (stages != asked.stages && ranks % asked.stages == 0) continue;
    if (!stages_fit(check, stages)) continue;
    for (const DenseShape& dense : dense_factorisations(static_cast<int>(ranks / stages))) {
      if (heads_known && (model.heads % dense.row != 0 || !kv_heads_fit(model.kv_heads, dense.row))) continue;
      if (std::max({dense.data, dense.depth, dense.row, dense.col}) > kMostExtent) continue;
      if (check.sound({"optimizer.shard"}) && dense.data % shards != 0) continue;
      ParallelDeck tried = asked;
      tried.dense = dense;
      const std::int64_t parts = capped_product({tried.coordinates(), parts_of_batch});
      if (check.sound({"batch.global"}) && deck.batch.global > 0 && deck.batch.global % parts != 0) continue;
      const double data = check.given("parallel.dense.data") ? 0.5 * change(dense.data, asked.dense.data) : 0.0;
      grids.push_back({data + change(static_cast<double>(stages), asked.stages) + change(dense.row, asked.dense.row) +
                           change(dense.col, asked.dense.col) + change(dense.depth, asked.dense.depth),
                       stages, dense});
    }
  }
  std::stable_sort(grids.begin(), grids.end(),
                   [](const ListedGrid& a, const ListedGrid& b) { return a.distance < b.distance; });
  return grids;
}

std::string grids_that_fit(const Check& check, std::int64_t ranks) {
  const BatchDeck& batch = check.deck.batch;
  const auto given = [&](const char* key, std::int64_t value) {
    return check.given(key) && check.sound({key}) ? std::max<std::int64_t>(value, 1) : 1;
  };
  const std::int64_t parts =
      capped_product({given("batch.micro", batch.micro), given("batch.micro_batches", batch.micro_batches)});
  std::vector<ListedGrid> grids = grids_of(check, ranks, parts);
  std::string list = "grids that fit this model and batch: ";
  if (grids.empty() && parts > 1) {
    grids = grids_of(check, ranks, 1);
    list = "grids that fit this model and batch.global, with other micro-batches: ";
  }
  if (grids.empty()) return "no grid of " + number(ranks) + " ranks fits this model and batch";
  for (std::size_t i = 0; i < grids.size() && i < 5; ++i) {
    list += (i > 0 ? "; " : "") + grid_text(grids[i].stages, grids[i].dense);
  }
  return list + (grids.size() > 5 ? "; and " + std::to_string(grids.size() - 5) + " more" : "");
}

void rank_rules(const Check& check) {
  const ParallelDeck& parallel = check.deck.parallel;
  const DenseShape& dense = parallel.dense;
  if (!check.sound({"parallel.stages", "parallel.dense.data", "parallel.dense.depth", "parallel.dense.row",
                    "parallel.dense.col"})) {
    return;
  }
  const bool data_given = check.given("parallel.dense.data");
  const std::int64_t product =
      capped_product({parallel.stages, std::max(dense.data, 1), dense.depth, dense.row, dense.col});
  if (product > kMostRanks) {
    check.add("parallel",
              "the product of stages, data, depth, row and col is more than " + number(kMostRanks) + " ranks");
    return;
  }
  if (!check.ranks) return;
  if (data_given && product != *check.ranks) {
    check.add("parallel", grid_text(parallel.stages, dense) + " = " + number(product) + " ranks, but there are " +
                              number(*check.ranks) + "; leave parallel.dense.data out, or " +
                              grids_that_fit(check, *check.ranks));
  } else if (!data_given && dense.data == 0) {
    check.add("parallel", "stages " + number(parallel.stages) + " x depth " + number(dense.depth) + " x row " +
                              number(dense.row) + " x col " + number(dense.col) + " = " + number(product) +
                              " must divide the " + number(*check.ranks) + " ranks; " +
                              grids_that_fit(check, *check.ranks));
  }
}

void moe_grid_rule(const Check& check) {
  const ParallelDeck& parallel = check.deck.parallel;
  const std::optional<std::int64_t> ranks = deck_ranks(check.deck);
  if (!parallel.moe || !ranks || *ranks > kMostRanks) return;
  if (!check.sound({"parallel.moe.replica", "parallel.moe.expert", "parallel.moe.row", "parallel.moe.col",
                    "parallel.stages", "parallel.dense.data", "parallel.dense.depth", "parallel.dense.row",
                    "parallel.dense.col"})) {
    return;
  }
  const MoeShape& moe = *parallel.moe;
  const std::int64_t size = parallel.dense.size();
  const std::int64_t rest = capped_product({moe.expert, moe.row, moe.col});
  if (moe.replica == 0) {
    check.add("parallel.moe", "expert " + number(moe.expert) + " x row " + number(moe.row) + " x col " +
                                  number(moe.col) + " = " + number(rest) + " must divide the " + number(size) +
                                  " ranks of a stage; products that do: " + join(divisors(size)));
  } else if (capped_product({moe.replica, rest}) != size) {
    check.add("parallel.moe", "replica " + number(moe.replica) + " x expert " + number(moe.expert) + " x row " +
                                  number(moe.row) + " x col " + number(moe.col) + " = " +
                                  number(capped_product({moe.replica, rest})) + " ranks, but parallel.dense has " +
                                  number(size) + " a stage; leave parallel.moe.replica out" +
                                  (size % rest == 0 ? ", or type replica: " + number(size / rest) : ""));
  }
}

// --- sums of gradients, sharded update ---

// Meshes [X, Y] of all ranks of a stage whose X is a multiple of the parts of the weights.
std::string meshes_that_fit(std::int64_t ranks, std::int64_t stride) {
  std::vector<std::string> meshes;
  for (const std::int64_t x : divisors(ranks)) {
    if (x % stride == 0) meshes.push_back("[" + number(x) + ", " + number(ranks / x) + "]");
  }
  return join(meshes);
}

void torus_rule(const Check& check) {
  const CommDeck& comm = check.deck.comm;
  const DenseShape& dense = check.deck.parallel.dense;
  if (comm.gradient != GradientAlgorithm::torus2d || dense.data == 0) return;
  if (!check.sound({"comm.gradient.algorithm", "comm.gradient.dims", "comm.gradient.model_stride",
                    "parallel.dense.data", "parallel.dense.depth", "parallel.dense.row", "parallel.dense.col"})) {
    return;
  }
  const std::int64_t ranks = capped_product({dense.data, dense.depth, dense.row, dense.col});
  const std::int64_t stride = weight_parts(dense);
  if (ranks > kMostRanks) return;
  if (comm.model_stride != stride) {
    check.add("comm.gradient.model_stride", number(comm.model_stride) + " must be depth x row x col = " +
                                                number(stride) + "; type that, or leave it out");
    return;
  }
  const std::string legal = "; legal: " + meshes_that_fit(ranks, stride);
  if (comm.dims.empty()) {
    check.add("comm.gradient.dims", "must be given for torus2d" + legal);
  } else if (capped_product({comm.dims[0], comm.dims[1]}) != ranks || comm.dims[0] % stride != 0) {
    check.add("comm.gradient.dims",
              "[" + number(comm.dims[0]) + ", " + number(comm.dims[1]) + "] must hold the " + number(ranks) +
                  " ranks of a stage, X a multiple of depth x row x col = " + number(stride) + legal);
  }
}

void shard_rule(const Check& check) {
  const UpdateShard& shard = check.deck.optimizer.shard;
  const std::int64_t data = check.deck.parallel.dense.data;
  if (shard.kind != UpdateShard::Kind::data_partial || !check.sound({"optimizer.shard", "comm.gradient.algorithm"})) {
    return;
  }
  if (check.deck.comm.gradient != GradientAlgorithm::flat) {
    check.add("optimizer.shard", "data_partial has two levels of its own; type data, or comm.gradient.algorithm: flat");
  } else if (check.sound({"parallel.dense.data"}) && data > 0 && data % shard.count != 0) {
    check.add("optimizer.shard", "data_partial " + number(shard.count) + " must divide parallel.dense.data " +
                                     number(data) + "; " + choose(divisors(data), shard.count));
  }
}

// --- batch: global = micro x coordinates x micro_batches ---

void batch_rules(const Check& check) {
  const BatchDeck& batch = check.deck.batch;
  const DenseShape& dense = check.deck.parallel.dense;
  // Without its own key, data follows from the other axes.
  if (!check.sound({"batch.global", "batch.micro", "batch.micro_batches", "parallel.stages", "parallel.dense.data",
                    "parallel.dense.depth", "parallel.dense.row", "parallel.dense.col"})) {
    return;
  }
  // Without a rank count only depth is known to divide the batch.
  const bool known = dense.data > 0;
  const bool by_sample = check.deck.parallel.depth_splits == DepthSplits::batch;  // else depth splits tokens
  const std::int64_t depth = by_sample ? dense.depth : 1;
  const std::int64_t coordinates = capped_product({std::max(dense.data, 1), depth});
  if (coordinates > kMostRanks) return;
  const std::string places =
      known ? number(coordinates) + " coordinates (data " + number(dense.data) + " x depth " + number(depth) + ")"
            : "data x depth " + number(depth);
  if (batch.global > kMostGlobal) {
    check.add("batch.global", "micro x coordinates x micro_batches is more than " + number(kMostGlobal) + " samples");
    return;
  }
  if (batch.global == 0) return;  // two are given, the third waits for the rank count
  if (batch.global % coordinates != 0) {
    const std::int64_t below = batch.global / coordinates * coordinates;
    const std::string nearest = below == 0 ? number(coordinates) : number(below) + " or " + number(below + coordinates);
    check.add("batch.global", number(batch.global) + (check.given("batch.global") ? "" : " (the default)") +
                                  " must be a multiple of the " + places + "; nearest: " + nearest);
    return;
  }
  const std::int64_t share = batch.global / coordinates;  // samples of one coordinate
  const std::string rule = "batch.global " + number(batch.global) + " = micro x " + places + " x micro_batches";
  if (batch.micro > 0 && batch.micro_batches > 0) {
    const std::int64_t product = capped_product({batch.micro, batch.micro_batches});
    if (known ? product != share : share % product != 0) {
      check.add("batch.global", number(batch.global) + " is not micro " + number(batch.micro) + " x " + places +
                                    " x micro_batches " + number(batch.micro_batches) + " = " +
                                    number(capped_product({product, coordinates})) +
                                    "; type that, or leave one of the three out");
    }
  } else if (batch.micro > 0 && share % batch.micro != 0) {
    check.add("batch.micro",
              number(batch.micro) + " does not fit " + rule + "; " + choose(divisors(share), batch.micro));
  } else if (batch.micro_batches > 0 && share % batch.micro_batches != 0) {
    check.add("batch.micro_batches", number(batch.micro_batches) + " does not fit " + rule + "; " +
                                         choose(divisors(share), batch.micro_batches));
  }
}

// --- machine ---

void machine_rule(const Check& check) {
  const std::optional<Machine>& machine = check.deck.emulate.description;
  const ParallelDeck& parallel = check.deck.parallel;
  if (!machine) return;
  // Where the ranks decide parallel.dense.data, one of it at least.
  const std::int64_t ranks = check.ranks ? *check.ranks
                                         : deck_ranks(check.deck)
                                               .value_or(capped_product({parallel.stages, parallel.dense.depth,
                                                                         parallel.dense.row, parallel.dense.col}));
  if (ranks <= machine->ranks()) return;
  check.add("emulate.machine", machine->name + " has " + number(machine->nodes) + " nodes x " +
                                   number(machine->ranks_per_node) + " ranks = " + number(machine->ranks()) +
                                   ", but the job has " + number(ranks) + "; name a larger machine");
}

}  // namespace

void grid_rules(const Check& check) {
  if (!check.sound({"parallel.stage_grids"})) return;
  if (!check.deck.parallel.stage_grids.empty()) {
    stage_grid_rules(check);
    machine_rule(check);
    return;
  }
  rank_rules(check);
  moe_grid_rule(check);
  torus_rule(check);
  shard_rule(check);
  batch_rules(check);
  machine_rule(check);
}

}  // namespace fourfold
