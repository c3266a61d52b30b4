#include "deck/cross_checks.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>

#include "deck/derive.hpp"
#include "deck/keys.hpp"
#include "deck/names.hpp"
#include "grid/process_grid.hpp"

namespace fourfold {
namespace {

constexpr std::int64_t kMostRanks = std::numeric_limits<int>::max();
constexpr std::int64_t kMostWidth = std::int64_t{1} << 22;
constexpr std::int64_t kMostGlobal = 1'000'000'000'000;
constexpr double kMostParameters = 2e17;  // so that 40 bytes each still fit 64 bits

struct Check {
  const Deck& deck;
  std::optional<std::int64_t> ranks;
  const KeyPlaces& places;
  std::vector<DeckError>& errors;

  // None of these keys has a fault of its own.
  bool sound(std::initializer_list<const char*> paths) const {
    return std::none_of(paths.begin(), paths.end(), [this](const char* path) { return places.faulty.count(path) > 0; });
  }
  bool given(const std::string& path) const { return places.given.count(path) > 0; }
  void add(const std::string& path, const std::string& message) const {
    const Place place = places.of(path);
    errors.push_back({place.file, place.line, place.column, path, message});
  }
};

std::string number(std::int64_t value) {
  return std::to_string(value);
}

std::string choose(const std::vector<std::int64_t>& legal, std::int64_t value) {
  if (legal.empty()) return "no value is legal";
  return "legal: " + join(legal) + "; nearest: " + number(nearest_value(value, legal));
}

bool kv_heads_fit(std::int64_t kv_heads, std::int64_t row) {
  return kv_heads % row == 0 || row % kv_heads == 0;
}

// --- model ---

void head_rules(const Check& check) {
  const ModelDeck& model = check.deck.model;
  if (model.kind != ModelKind::transformer || !check.sound({"model.heads"})) return;
  if (check.sound({"model.hidden", "model.head_dim"}) && model.head_dim == 0) {
    check.add("model.head_dim", "must be given, because model.heads " + number(model.heads) +
                                    " does not divide model.hidden " + number(model.hidden) +
                                    "; heads that do: " + join(divisors(model.hidden)));
  }
  if (check.sound({"model.head_dim"}) && model.heads * model.head_dim > kMostWidth) {
    check.add("model.head_dim", "model.heads x head_dim = " + number(model.heads * model.head_dim) +
                                    " is too wide; legal: up to " + number(kMostWidth / model.heads));
  }
  if (check.sound({"model.head_dim", "model.positions"}) && model.positions == Positions::rope &&
      model.head_dim % 2 != 0) {
    check.add("model.head_dim", number(model.head_dim) +
                                    " must be even for model.positions rope; nearest: " + number(model.head_dim + 1));
  }
  if (check.sound({"model.kv_heads"}) && model.heads % model.kv_heads != 0) {
    check.add("model.kv_heads", number(model.kv_heads) + " must divide model.heads " + number(model.heads) + "; " +
                                    choose(divisors(model.heads), model.kv_heads));
  }
}

void head_split_rules(const Check& check) {
  const ModelDeck& model = check.deck.model;
  const std::int64_t row = check.deck.parallel.dense.row;
  if (model.kind != ModelKind::transformer || !check.sound({"model.heads", "parallel.dense.row"})) return;
  if (model.heads % row != 0) {
    check.add("parallel.dense.row", number(row) + " must divide model.heads " + number(model.heads) + "; " +
                                        choose(divisors(model.heads), row));
  }
  if (check.sound({"model.kv_heads"}) && !kv_heads_fit(model.kv_heads, row)) {
    std::vector<std::int64_t> legal = divisors(model.heads);
    std::erase_if(legal, [row](std::int64_t kv_heads) { return !kv_heads_fit(kv_heads, row); });
    check.add("model.kv_heads", number(model.kv_heads) + " must divide parallel.dense.row " + number(row) +
                                    " or be a multiple of it; " + choose(legal, model.kv_heads));
  }
}

void loss_rule(const Check& check) {
  const ModelDeck& model = check.deck.model;
  if (!check.sound({"model.kind", "model.loss"})) return;
  if (model.kind == ModelKind::transformer && model.loss == LossKind::squared_error) {
    check.add("model.loss", "squared_error is for model.kind mlp or embedding; legal for transformer: cross_entropy");
  }
}

// Keys that only some kinds of model look at: a deck that asks for them elsewhere would silently not get them.
struct KindsOfKey {
  const char* path;  // a key, or a block with all its keys
  std::vector<ModelKind> kinds;
};

const std::vector<KindsOfKey>& kinds_of_keys() {
  using enum ModelKind;
  static const std::vector<KindsOfKey> table = {
      {"model.layers", {transformer}},
      {"model.hidden", {transformer, embedding}},
      {"model.heads", {transformer}},
      {"model.kv_heads", {transformer}},
      {"model.head_dim", {transformer}},
      {"model.vocab", {transformer, embedding}},
      {"model.sequence", {transformer, embedding}},
      {"model.positions", {transformer}},
      {"model.rope_theta", {transformer}},
      {"model.norm", {transformer}},
      {"model.norm_eps", {transformer}},
      {"model.ffn", {transformer}},
      {"model.bias", {transformer}},
      {"model.tie_embeddings", {transformer, embedding}},
      {"model.dropout", {transformer, embedding}},
      {"model.init.scale_residual", {transformer}},
      // inputs/all_keys.yaml, a transformer's deck, has every key: it may have widths.
      {"model.widths", {mlp, transformer}},
      {"model.activation", {mlp}},
      {"model.bias_terms", {mlp}},
      {"loss.goldfish", {transformer, embedding}},
      {"parallel.depth_splits", {transformer, embedding}},
      {"parallel.sequence_shard", {transformer, embedding}},
      {"attention.split", {transformer}},
  };
  return table;
}

// The value of the deck is not what a deck without the key has.
bool asks_for(const Check& check, const DeckKey& key) {
  return check.given(key.path) && (!key.fixed_default() || key.get(check.deck) != key.get(Deck{}));
}

void kind_rules(const Check& check) {
  if (!check.sound({"model.kind"})) return;
  const DeckKey& kind = *find_key(deck_keys(), "model.kind");
  const auto index = static_cast<std::size_t>(check.deck.model.kind);
  for (const KindsOfKey& row : kinds_of_keys()) {
    if (std::find(row.kinds.begin(), row.kinds.end(), check.deck.model.kind) != row.kinds.end()) continue;
    std::vector<std::string> kinds;
    for (const ModelKind each : row.kinds) kinds.push_back(kind.choices[static_cast<std::size_t>(each)]);
    const std::string block = std::string(row.path) + ".";
    for (const DeckKey& key : deck_keys()) {
      if ((key.path != row.path && !key.path.starts_with(block)) || !check.sound({key.path.c_str()})) continue;
      if (!asks_for(check, key)) continue;
      check.add(key.path, "has no effect on model.kind " + kind.choices[index] + ", only on " + join(kinds) +
                              "; take it away, or change model.kind");
    }
  }
}

void goldfish_rules(const Check& check) {
  const GoldfishDeck& goldfish = check.deck.loss.goldfish;
  const ModelDeck& model = check.deck.model;
  if (!check.sound({"loss.goldfish.k", "model.kind"}) || goldfish.k == 0) return;
  if (model.kind == ModelKind::mlp) return;  // kind_rules
  if (goldfish.k == 1) {
    check.add("loss.goldfish.k", "1 would leave every target out; legal: 0 (off), 2 or more; nearest: 2");
  }
  if (check.sound({"loss.goldfish.h", "model.sequence"}) && goldfish.h > model.sequence) {
    check.add("loss.goldfish.h", number(goldfish.h) + " must be at most model.sequence " + number(model.sequence) +
                                     "; legal: 1 to " + number(model.sequence) +
                                     "; nearest: " + number(model.sequence));
  }
}

void moe_rules(const Check& check) {
  const ModelDeck& model = check.deck.model;
  if (!model.moe || !check.sound({"model.kind"})) return;
  if (model.kind != ModelKind::transformer) {
    check.add("model.moe", "needs model.kind transformer; take it away or change the kind");
    return;
  }
  const std::int64_t experts = model.moe->experts;
  if (check.sound({"model.moe.every", "model.layers"}) && model.moe->every > model.layers) {
    check.add("model.moe.every", number(model.moe->every) + " leaves no mixture of experts in model.layers " +
                                     number(model.layers) + "; legal: 1 to " + number(model.layers) +
                                     "; nearest: " + number(model.layers));
  }
  if (!check.sound({"model.moe.experts"})) return;
  if (check.sound({"model.moe.top_k"}) && model.moe->top_k > experts) {
    check.add("model.moe.top_k", number(model.moe->top_k) + " must be at most model.moe.experts " + number(experts) +
                                     "; legal: 1 to " + number(experts) + "; nearest: " + number(experts));
  }
  const auto& grid = check.deck.parallel.moe;
  if (grid && check.sound({"parallel.moe.expert"}) && experts % grid->expert != 0) {
    check.add("parallel.moe.expert", number(grid->expert) + " must divide model.moe.experts " + number(experts) + "; " +
                                         choose(divisors(experts), grid->expert));
  }
}

void size_rule(const Check& check) {
  const ModelDeck& model = check.deck.model;
  const double heads_width = static_cast<double>(model.heads) * static_cast<double>(model.head_dim);
  const double hidden = static_cast<double>(model.hidden);
  const double experts = model.moe ? static_cast<double>(model.moe->experts) : 1.0;
  const double block = 4 * hidden * heads_width + 3 * experts * hidden * static_cast<double>(model.ffn.hidden);
  const double about = static_cast<double>(model.layers) * block + 2 * hidden * static_cast<double>(model.vocab);
  if (model.kind == ModelKind::transformer && about > kMostParameters) {
    check.add("model", "about " + number(std::llround(std::log10(about))) +
                           " decimal digits of parameters; the most that counts of bytes allow is 2e17");
  }
}

// --- data ---

void data_rules(const Check& check) {
  const Deck& deck = check.deck;
  const DataDeck& data = deck.data;
  if (!check.sound({"data.kind", "model.kind"})) return;
  const bool text = data.kind == DataKind::text;
  if (text && deck.model.kind == ModelKind::mlp) {
    check.add("data.kind", "text needs tokens, and model.kind mlp takes none; legal for mlp: synthetic");
  }
  if (text && deck.model.kind != ModelKind::mlp && check.sound({"model.vocab"}) && deck.model.vocab < kByteVocab) {
    check.add("model.vocab", number(deck.model.vocab) +
                                 " is too small for text: 256 bytes and the end of a document; "
                                 "legal: 257 or more; nearest: 257");
  }
  const bool teacher = !text && data.synthetic == SyntheticKind::teacher;
  if (teacher && deck.model.kind != ModelKind::mlp && check.sound({"data.synthetic"})) {
    check.add("data.synthetic", "teacher is for model.kind mlp; legal for tokens: dyadic");
  }
  const bool both = !data.valid.empty() && data.valid_fraction > 0;
  if (text && both && check.sound({"data.valid", "data.valid_fraction"})) {
    check.add("data.valid_fraction", "holds out a part of data.train, but data.valid is given too; take one away");
  }
  const bool validation = text ? !data.valid.empty() || data.valid_fraction > 0 : data.valid_samples > 0;
  if (check.sound({"eval.every", "data.valid", "data.valid_fraction", "data.valid_samples"}) && deck.eval.every > 0 &&
      !validation) {
    check.add("eval.every", number(deck.eval.every) + " needs data to evaluate on; give " +
                                (text ? "data.valid_fraction (such as 0.02) or data.valid" : "data.valid_samples") +
                                ", or type eval.every: 0");
  }
}

// --- numbers ---

void rate_rule(const Check& check) {
  const std::int64_t warmup = check.deck.optimizer.schedule.warmup;
  const std::int64_t steps = check.deck.run.steps;
  if (check.sound({"optimizer.schedule.warmup", "run.steps"}) && warmup > steps) {
    check.add("optimizer.schedule.warmup", number(warmup) + " must be at most run.steps " + number(steps) +
                                               "; legal: 0 to " + number(steps) + "; nearest: " + number(steps));
  }
}

void snap_rule(const Check& check) {
  if (!check.sound({"numerics.snap", "precision.compute"})) return;
  if (check.deck.numerics.snap && check.deck.precision != Precision::fp64) {
    check.add("numerics.snap", "needs precision.compute fp64; type that, or numerics.snap: 0");
  }
}

// --- grid ---

std::string grid_text(std::int64_t stages, const DenseShape& grid) {
  return "stages " + number(stages) + " x data " + number(grid.data) + " x depth " + number(grid.depth) + " x row " +
         number(grid.row) + " x col " + number(grid.col);
}

void stage_rule(const Check& check) {
  const ModelDeck& model = check.deck.model;
  if (!check.sound({"parallel.stages", "model.kind", "model.layers", "model.widths"})) return;
  const std::int64_t parts = model.kind == ModelKind::transformer ? model.layers
                             : model.kind == ModelKind::mlp       ? std::int64_t(model.widths.size()) - 1
                                                                  : 2;
  if (check.deck.parallel.stages > parts) {
    check.add("parallel.stages", number(check.deck.parallel.stages) + " is more than the model's " + number(parts) +
                                     " layers; legal: 1 to " + number(parts) + "; nearest: " + number(parts));
  }
}

// Grids of `ranks` ranks that this model and batch allow, those most like the deck's first.
std::string grids_that_fit(const Check& check, std::int64_t ranks) {
  const Deck& deck = check.deck;
  const ModelDeck& model = deck.model;
  const ParallelDeck& asked = deck.parallel;
  const bool heads_known = model.kind == ModelKind::transformer && check.sound({"model.heads", "model.kv_heads"});
  struct Grid {
    double distance;
    std::int64_t stages;
    DenseShape dense;
  };
  const auto change = [](double a, double b) { return a == b ? 0.0 : 1.0 + 0.1 * std::abs(std::log2(a / b)); };
  std::vector<Grid> grids;
  for (const std::int64_t stages : divisors(ranks)) {
    if (model.kind == ModelKind::transformer && check.sound({"model.layers"}) && stages > model.layers) break;
    for (const DenseShape& dense : dense_factorisations(static_cast<int>(ranks / stages))) {
      if (heads_known && (model.heads % dense.row != 0 || !kv_heads_fit(model.kv_heads, dense.row))) continue;
      ParallelDeck tried = asked;
      tried.dense = dense;
      if (check.sound({"batch.global"}) && deck.batch.global > 0 && deck.batch.global % tried.coordinates() != 0) {
        continue;
      }
      const double data = check.given("parallel.dense.data") ? 0.5 * change(dense.data, asked.dense.data) : 0.0;
      grids.push_back({data + change(static_cast<double>(stages), asked.stages) + change(dense.row, asked.dense.row) +
                           change(dense.col, asked.dense.col) + change(dense.depth, asked.dense.depth),
                       stages, dense});
    }
  }
  std::stable_sort(grids.begin(), grids.end(), [](const Grid& a, const Grid& b) { return a.distance < b.distance; });
  if (grids.empty()) return "no grid of " + number(ranks) + " ranks fits this model and batch";
  std::string list = "grids that fit this model and batch: ";
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

std::vector<DeckError> machine_check(const Deck& deck, const KeyPlaces& places) {
  std::vector<DeckError> errors;
  const Check check{deck, std::nullopt, places, errors};
  if (!deck.emulate.description || !check.given("hosts") || !check.sound({"hosts", "nodes"})) return errors;
  const Machine& machine = *deck.emulate.description;
  if (machine.hosts.empty()) {
    check.add("hosts", "is no list of hosts as Slurm writes them; wanted: such as \"nid[001-004,007]\"");
  } else if (std::ssize(machine.hosts) != machine.nodes) {
    check.add("hosts", "names " + number(std::ssize(machine.hosts)) + " hosts, but nodes is " + number(machine.nodes) +
                           "; wanted: one a node");
  }
  return errors;
}

Place KeyPlaces::of(const std::string& path) const {
  for (std::string block = path; !block.empty();
       block = block.find('.') == std::string::npos ? "" : block.substr(0, block.rfind('.'))) {
    if (const auto found = given.find(block); found != given.end()) return found->second;
  }
  return Place{file, 1, 1};
}

std::vector<DeckError> cross_check(const Deck& deck, std::optional<std::int64_t> ranks, const KeyPlaces& places) {
  std::vector<DeckError> errors;
  const Check check{deck, ranks, places, errors};
  head_rules(check);
  head_split_rules(check);
  loss_rule(check);
  kind_rules(check);
  goldfish_rules(check);
  moe_rules(check);
  size_rule(check);
  data_rules(check);
  rate_rule(check);
  snap_rule(check);
  stage_rule(check);
  rank_rules(check);
  moe_grid_rule(check);
  torus_rule(check);
  shard_rule(check);
  batch_rules(check);
  machine_rule(check);
  return errors;
}

}  // namespace fourfold
