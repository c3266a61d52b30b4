// A checkpoint of any grid is read by any other: weights and moments as read are bit for bit those that were saved, and
// training goes on as if nothing had happened, to rounding. All pairs of the 20 grids of 8 ranks under --full.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "checkpoint/checkpoint.hpp"
#include "comm/agree.hpp"
#include "comm/collectives.hpp"
#include "comm/launch.hpp"
#include "grid/process_grid.hpp"
#include "mpi_test.hpp"
#include "runs.hpp"
#include "test_support.hpp"
#include "train/restart.hpp"

namespace fourfold {
namespace {

constexpr int kStepsBefore = 2;
constexpr int kRanks = 8;

std::string name(const DenseShape& g) {
  return std::to_string(g.data) + "x" + std::to_string(g.depth) + "x" + std::to_string(g.row) + "x" +
         std::to_string(g.col);
}

const Communicator& world() {
  return test::launch().world();
}

std::string folder(const DenseShape& g) {
  return (std::filesystem::path(testing::TempDir()) / ("fourfold_regrid_" + name(g))).string();
}

// Sizes that do not divide: shards differ from grid to grid, and some are empty.
Deck deck_on(const DenseShape& g, const Communicator& group) {
  return test::deck_of(
      R"(
run: {name: regrid, steps: 10, seed: 5}
model: {kind: transformer, layers: 1, hidden: 13, heads: 8, kv_heads: 2, head_dim: 3, vocab: 29, sequence: 6,
        positions: learned, norm: layer, ffn: {kind: gelu, hidden: 17}, tie_embeddings: true, init: {std: 0.2}}
data: {kind: synthetic, synthetic: dyadic, samples: 100}
batch: {global: 8}
optimizer: {kind: adamw, lr: 1.0e-2, weight_decay: 0.1, clip: 1.0}
precision: {compute: fp64}
)",
      {"parallel.dense.data=" + std::to_string(g.data), "parallel.dense.depth=" + std::to_string(g.depth),
       "parallel.dense.row=" + std::to_string(g.row), "parallel.dense.col=" + std::to_string(g.col),
       "run.folder=" + folder(g)},
      group.size());
}

using Held = std::map<std::string, std::map<std::int64_t, double>>;  // tensor, global index

struct Job : test::Training<> {
  Job(const DenseShape& grid, const Communicator& group) : Training(deck_on(grid, group), group) {}

  void save() {
    prepare_folder(comms.world(), deck);
    save_checkpoint(comms.world(), deck, loader, shards(), {trainer.steps_done(), trainer.cursor()}, {}, {});
  }
  void load(const DenseShape& from) {
    const checkpoint::Restart restart =
        checkpoint::load_newest(comms.world(), folder(from) + "/checkpoints", saved.shards());
    ASSERT_TRUE(restart.loaded);
    saved.to_device();
    trainer.resume(restart.loaded->state.integer("step"), restart.loaded->state.integer("cursor"));
  }
  // What this rank holds now.
  Held held() const {
    Held all;
    for (const checkpoint::NamedShard& shard : shards()) {
      const auto* data = static_cast<const double*>(shard.data);
      auto& tensor = all[shard.name];
      for (std::int64_t i = 0; i < shard.shard.size(); ++i) tensor[shard.shard.global_index(i)] = data[i];
    }
    return all;
  }
};

// The largest distance over elements that `some` holds, over the largest magnitude of their kind in `whole`.
double distance(const Held& some, const Held& whole) {
  std::map<std::string, double> most;
  const auto kind = [](const std::string& tensor) { return tensor.substr(0, tensor.rfind('/')); };
  for (const auto& [tensor, values] : whole) {
    for (const auto& entry : values) most[kind(tensor)] = std::max(most[kind(tensor)], std::abs(entry.second));
  }
  double largest = 0;
  for (const auto& [tensor, values] : some) {
    const auto& others = whole.at(tensor);
    for (const auto& [index, value] : values) {
      const double here = std::abs(value - others.at(index)) / most[kind(tensor)];
      if (!(here <= largest)) largest = here;
    }
  }
  return largest;
}

// Bit for bit, up to the first element that is not.
void expect_part_of(const Held& whole, const Held& some) {
  for (const auto& [tensor, values] : some) {
    for (const auto& [index, value] : values) ASSERT_EQ(value, whole.at(tensor).at(index)) << tensor;
  }
}

TEST(Regrid, P07AnyGridReadsWhatAnyGridWrote) {
  const Communicator alone(world(), {world().rank()}, "alone");
  const std::vector<DenseShape> grids = dense_factorisations(kRanks);
  std::vector<std::pair<DenseShape, DenseShape>> pairs;
  for (const DenseShape& from : grids) {
    for (const DenseShape& to : grids) pairs.emplace_back(from, to);
  }
  pairs = test::sample(pairs, 8);

  Job unbroken({}, alone);
  double loss = 0;
  for (int step = 0; step <= kStepsBefore; ++step) loss = unbroken.trainer.step().loss;
  const auto expected = unbroken.held();

  std::map<std::string, Held> saved;  // by the grid that wrote it
  int compared = 0;
  for (const auto& [from, to] : pairs) {
    SCOPED_TRACE(name(from) + " to " + name(to));
    if (!saved.contains(name(from))) {
      if (world().rank() == 0) std::filesystem::remove_all(folder(from));
      barrier(world(), Phase::control);
      Job writer(from, world());
      for (int step = 0; step < kStepsBefore; ++step) writer.trainer.step();
      writer.save();
      Job whole({}, alone);
      whole.load(from);
      saved[name(from)] = whole.held();
      // Read back by one rank it is what the writers hold.
      expect_part_of(saved[name(from)], writer.held());
    }
    Job reader(to, world());
    reader.load(from);
    expect_part_of(saved[name(from)], reader.held());
    const double next = reader.trainer.step().loss;
    EXPECT_NEAR(next, loss, 1e-11 * loss);
    EXPECT_LE(distance(reader.held(), expected), 1e-11);
    ++compared;
    if (agree_any(world(), testing::Test::HasFailure())) break;
  }
  if (world().rank() == 0) {
    std::printf("%d pairs of grids\n", compared);
    for (const auto& entry : saved) {
      for (const DenseShape& grid : grids) {
        if (name(grid) == entry.first) std::filesystem::remove_all(folder(grid));
      }
    }
  }
}

}  // namespace
}  // namespace fourfold
