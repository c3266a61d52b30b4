// Experts that change ranks (model.moe.migration): no bit of a run changes, on any grid; checkpoints hold logical
// tensors and the map. FOURFOLD_FULL=1 runs the whole lists.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "comm/agree.hpp"
#include "comm/collectives.hpp"
#include "layers/moe/moe.hpp"
#include "moe_runs.hpp"
#include "test_support.hpp"
#include "train/loop.hpp"
#include "train/restart.hpp"

namespace fourfold {
namespace {

using test::Folding;
using test::foldings;
using test::odd_moe;
using test::overrides;
using test::Texts;
using test::world;

Texts joined(Texts a, const Texts& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Uneven loads whose heavy experts lie side by side, and a look after every step.
const Texts kMoves = {"model.moe.forced={routing: zipf, exponent: 1}",
                      "model.moe.migration={every: 1, tau: 1, budget: 4}", "numerics={deterministic: true}"};
const Texts kStays = {"model.moe.forced={routing: zipf, exponent: 1}", "numerics={deterministic: true}"};

template <class T>
struct Job : test::Training<T> {
  Job(const Texts& list, const Communicator& ranks)
      : test::Training<T>(test::deck_of(odd_moe(), list, ranks.size()), ranks) {}
  // A step and the look after it; how many swaps.
  std::size_t step(StepReport* report = nullptr) {
    const StepReport made = this->trainer.step();
    if (report != nullptr) *report = made;
    return look();
  }
  std::size_t look() {
    const auto migration = this->trainer.migrate();
    if (!migration) return 0;
    if (migration->any()) this->saved.follow_places();
    std::size_t swaps = 0;
    for (const LayerMigration& layer : migration->layers) swaps += layer.swaps.size();
    return swaps;
  }
};

// The whole logical tensors of a run, as a checkpoint of all ranks would hold them: each element from its owner.
template <class T>
test::Tensors whole_tensors(Job<T>& run) {
  test::Tensors all;
  for (const checkpoint::NamedShard& shard : run.shards()) {
    std::vector<double>& values = all[shard.name];
    values.assign(static_cast<std::size_t>(shard.shard.global_size()), 0.0);
    for (std::int64_t i = shard.owned.begin; i < shard.owned.end; ++i) {
      double value = 0;
      if (shard.type == checkpoint::ElementType::fp64) value = static_cast<const double*>(shard.data)[i];
      if (shard.type == checkpoint::ElementType::fp32) value = static_cast<const float*>(shard.data)[i];
      if (shard.type == checkpoint::ElementType::bf16) {
        value = static_cast<double>(static_cast<const kernels::bf16*>(shard.data)[i]);
      }
      values[static_cast<std::size_t>(shard.shard.global_index(i))] = value;
    }
  }
  // By name, on all ranks alike. One owner an element: exact.
  for (auto& [name, values] : all) all_reduce_sum<double>(world(), values, Summation::deterministic, Phase::control);
  return all;
}

void expect_equal(const test::Tensors& a, const test::Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, values] : a) EXPECT_TRUE(values == b.at(name)) << name;
}

// Runs with and without: losses, norms, and at the end all values and states, bit for bit.
template <class T>
void expect_same_run(const Texts& list, int steps = 3) {
  std::string text;
  for (const std::string& each : list) text += " " + each;
  SCOPED_TRACE(text);
  Job<T> moves(joined(list, kMoves), world()), stays(joined(list, kStays), world());
  std::size_t swaps = 0;
  for (int step = 0; step < steps; ++step) {
    StepReport with, without;
    swaps += moves.step(&with);
    stays.step(&without);
    EXPECT_EQ(with.loss, without.loss) << step;
    EXPECT_EQ(with.grad_norm, without.grad_norm) << step;
  }
  const bool several = moves.comms.grid().stage(0).moe.expert > 1;
  EXPECT_EQ(swaps > 0, several);
  expect_equal(whole_tensors(moves), whole_tensors(stays));
}

// Two layers, each with a map of its own.
TEST(MoeMigration, ChangesNoBit) {
  FOURFOLD_EIGHT_RANKS();
  std::vector<Folding> all;
  for (const Folding& f : foldings(8, 6)) {
    if (f.moe.expert > 1) all.push_back(f);
  }
  for (const Folding& f : test::sample(all, 1)) {
    expect_same_run<double>(joined(overrides(f), {"optimizer.kind=adamw", "optimizer.lr=0.01", "model.layers=4"}));
    if (agree_any(world(), testing::Test::HasFailure())) return;
  }
}

// With a cut update a norm's parts lie elsewhere: without clipping it moves nothing.
TEST(MoeMigration, OptimizersAndCutUpdates) {
  FOURFOLD_EIGHT_RANKS();
  const Texts grid = {"parallel.dense={data: 4, row: 2}", "parallel.moe={replica: 2, expert: 4}"};
  const Texts wide = {"parallel.dense={data: 8}", "parallel.moe={replica: 4, expert: 2}"};
  const Texts adamw = {"optimizer.kind=adamw", "optimizer.lr=0.01", "optimizer.clip=0"};
  const auto run = [](const Texts& list, const Texts& more) {
    const Texts both = joined(list, more);
    Job<double> moves(joined(both, kMoves), world()), stays(joined(both, kStays), world());
    std::size_t swaps = 0;
    for (int step = 0; step < 3; ++step) {
      StepReport with, without;
      swaps += moves.step(&with);
      stays.step(&without);
      EXPECT_EQ(with.loss, without.loss) << step;
      EXPECT_NEAR(with.grad_norm, without.grad_norm, 1e-13 * without.grad_norm) << step;
    }
    EXPECT_GT(swaps, 0u);
    expect_equal(whole_tensors(moves), whole_tensors(stays));
  };
  run(grid, joined(adamw, {"optimizer.shard=data", "optimizer.gather=lazy"}));
  run(wide, joined(adamw, {"optimizer.shard={data_partial: 2}"}));
  if (test::full())
    run(wide, joined(adamw, {"optimizer.shard=data", "comm.gradient={algorithm: torus2d, dims: [2, 4]}"}));
  expect_same_run<double>(joined(grid, {"optimizer.kind=lars", "optimizer.lr=0.01"}));
  if (test::full()) expect_same_run<double>(joined(grid, {"optimizer.kind=lamb", "optimizer.lr=0.01"}));
  expect_same_run<kernels::bf16>(joined(grid, {"precision.compute=bf16", "optimizer.kind=adamw", "optimizer.lr=0.01"}));
}

// Stages with experts and without; each layer has a map of its own.
TEST(MoeMigration, InStages) {
  FOURFOLD_EIGHT_RANKS();
  const Texts grid = {"parallel.stages=2", "parallel.dense={data: 2, row: 2}", "parallel.moe={replica: 2, expert: 2}",
                      "batch.micro_batches=4", "model.layers=4"};
  expect_same_run<double>(joined(grid, {"parallel.schedule=1f1b"}), 3);
  if (test::full())
    expect_same_run<double>(joined(grid, {"parallel.schedule=gpipe", "model.moe.dispatcher=allgather"}), 3);
}

TEST(MoeMigration, MemoryIsTold) {
  FOURFOLD_EIGHT_RANKS();
  Job<double> run(
      joined({"parallel.dense={data: 8}", "parallel.moe={replica: 2, expert: 4}", "optimizer.kind=adamw"}, kMoves),
      world());
  const MemoryPerRank told = memory_of_rank(run.deck, run.comms.here());
  EXPECT_GT(told.migration, 0);
  EXPECT_EQ(run.memory.peak(MemoryTag::buffers), 0);
  // All experts of every rank go to another one.
  run.trainer.restore_placement("layer 1 places 2 3 0 1 5 4 loads 0 0 0 0 0 0\n");
  EXPECT_EQ(run.memory.peak(MemoryTag::buffers), told.migration);
  EXPECT_EQ(run.memory.live(MemoryTag::buffers), 0);
  EXPECT_EQ(run.memory.live(MemoryTag::optimizer), told.optimizer);
  EXPECT_EQ(run.memory.live(MemoryTag::parameters), told.parameters);
}

// --- restart ---

// Of this launch alone: the name is rank 0's.
std::string scratch(const std::string& name) {
  const std::string folder = broadcast_string(
      world(),
      (std::filesystem::path(testing::TempDir()) / ("fourfold_" + name + "_" + std::to_string(getpid()))).string());
  if (world().rank() == 0) std::filesystem::remove_all(folder);
  barrier(world(), Phase::control);
  return folder;
}

ExitCode train_on(const Texts& list, const TrainOptions& options = {}) {
  const Deck deck = test::deck_of(odd_moe(), list, 8);
  const GridComms comms = test::grid_comms(deck, world());
  MemoryLedger memory;
  Pool pool(memory);
  return train<double>(deck, comms, pool, options);
}

// Lines of metrics.jsonl: losses and looks by step, the last of each.
struct Lines {
  std::map<int, nlohmann::json> losses, looks;
};
Lines read_metrics(const std::string& folder) {
  Lines lines;
  std::ifstream file(folder + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    nlohmann::json json = nlohmann::json::parse(line);
    if (json.contains("loss") && !json.contains("event")) lines.losses[json["step"]] = json["loss"];
    if (json.contains("event") && json["event"] == "migration") lines.looks[json["step"]] = json["layers"];
  }
  return lines;
}

// A run of the loop in `folder`.
Texts looped(const std::string& folder, int steps, int every, const Texts& grid) {
  return joined(grid, {"run.folder=" + folder, "run.steps=" + std::to_string(steps), "checkpoint.every=0",
                       "model.moe.migration={every: " + std::to_string(every) + ", tau: 1, budget: 2}",
                       "model.moe.forced={routing: zipf, exponent: 0.7}", "numerics={deterministic: true}"});
}

// A run that stopped between two looks goes on as one that did not: the same losses, swaps and loads.
TEST(MoeMigration, RestartKeepsTheMap) {
  FOURFOLD_EIGHT_RANKS();
  const Texts grid = {"parallel.dense={data: 4, row: 2}", "parallel.moe={replica: 2, expert: 4}"};
  const std::string whole = scratch("moe_map_whole"), halves = scratch("moe_map_halves");
  EXPECT_EQ(train_on(looped(whole, 6, 2, grid)), ExitCode::done);
  TrainOptions stop;
  stop.stop_at_step = 3;
  EXPECT_EQ(train_on(looped(halves, 6, 2, grid), stop), ExitCode::again);
  EXPECT_EQ(train_on(looped(halves, 6, 2, grid)), ExitCode::done);
  if (world().rank() == 0) {
    const Lines a = read_metrics(whole), b = read_metrics(halves);
    EXPECT_EQ(a.losses.size(), 6u);
    EXPECT_EQ(a.losses, b.losses);
    EXPECT_EQ(a.looks.size(), 3u);
    EXPECT_EQ(a.looks, b.looks);
    for (const auto& [step, layers] : a.looks) {
      ASSERT_EQ(layers.size(), 1u);
      EXPECT_EQ(layers[0]["layer"], 1);
      EXPECT_LE(layers[0]["after"], layers[0]["before"]);
    }
    EXPECT_FALSE(a.looks.at(2)[0]["swaps"].empty());
  }
  barrier(world(), Phase::control);
  // On other grids, with migration and without.
  int every = 1;
  for (const Folding& f : test::sample(foldings(8, 6), 1)) {
    const std::string copy = scratch("moe_map_copy");
    if (world().rank() == 0) {
      std::filesystem::copy(whole, copy, std::filesystem::copy_options::recursive);
      std::filesystem::remove(copy + "/metrics.jsonl");
    }
    barrier(world(), Phase::control);
    EXPECT_EQ(train_on(looped(copy, 8, every, overrides(f))), ExitCode::done);
    if (world().rank() == 0) {
      const Lines lines = read_metrics(copy);
      EXPECT_EQ(lines.losses.size(), 2u);
      EXPECT_EQ(lines.looks.size(), every == 0 ? 0u : 2u);
      std::filesystem::remove_all(copy);
    }
    every = 1 - every;
  }
  barrier(world(), Phase::control);
  if (world().rank() == 0) {
    for (const std::string& folder : {whole, halves}) std::filesystem::remove_all(folder);
  }
  barrier(world(), Phase::control);
}

// Steps on a grid, a checkpoint, more steps on another grid: what a run without migration has.
TEST(MoeMigration, RestartOnAnotherGrid) {
  FOURFOLD_EIGHT_RANKS();
  const std::string folder = scratch("moe_map_grids");
  std::vector<Folding> all;
  for (const Folding& f : foldings(8, 6)) {
    if (f.moe.expert > 1) all.push_back(f);
  }
  const std::vector<Folding> from = test::sample(all, 1), to = test::sample(foldings(8, 6), 1);
  Job<double> unbroken(joined(overrides(from[0]), kStays), world());
  for (int step = 0; step < 3; ++step) unbroken.step();
  const test::Tensors expected = whole_tensors(unbroken);
  {
    Job<double> writer(joined(joined(overrides(from[0]), kMoves), {"run.folder=" + folder}), world());
    EXPECT_GT(writer.step() + writer.step(), 0u);
    prepare_folder(world(), writer.deck);
    save_checkpoint(
        world(), writer.deck, writer.loader, writer.shards(),
        {writer.trainer.steps_done(), writer.trainer.cursor(), writer.trainer.skips(), writer.trainer.placement()}, {},
        {});
  }
  for (const Folding& f : to) {
    Job<double> reader(joined(overrides(f), kMoves), world());
    const checkpoint::Restart restart =
        checkpoint::load_newest(world(), folder + "/checkpoints", reader.saved.shards());
    ASSERT_TRUE(restart.loaded);
    const std::string map = restart.loaded->state.text("experts");
    reader.saved.to_device();
    reader.trainer.resume(restart.loaded->state.integer("step"), restart.loaded->state.integer("cursor"));
    if (reader.trainer.restore_placement(map).any()) reader.saved.follow_places();
    EXPECT_EQ(reader.trainer.placement(), map);
    EXPECT_NE(map.find("places"), std::string::npos);
    reader.step();
    const test::Tensors now = whole_tensors(reader);
    for (const auto& [name, values] : expected) {
      const std::vector<double>& mine = now.at(name);
      for (std::size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(mine[i], values[i], 1e-11) << name;
    }
    if (agree_any(world(), testing::Test::HasFailure())) return;
  }
  barrier(world(), Phase::control);
  if (world().rank() == 0) std::filesystem::remove_all(folder);
}

TEST(MoeMigration, MapOfAnotherModelIsRefused) {
  FOURFOLD_EIGHT_RANKS();
  Job<double> run(joined({"parallel.dense={data: 8}", "parallel.moe={replica: 2, expert: 4}"}, kMoves), world());
  for (const char* text : {"layer 1 places 0 1 2 loads 0 0 0\n", "layer 0 places 0 1 2 3 4 5 loads 0 0 0 0 0 0\n",
                           "layer 1 places 0 1 2 3 4 4 loads 0 0 0 0 0 0\n", "nonsense"}) {
    EXPECT_THROW(run.trainer.restore_placement(text), Error) << text;
  }
}

// Of the program as a whole: the loads of forced Zipf routing reach A17's figures on 4 ranks.
TEST(MoeMigration, ZipfOnFourRanks) {
  FOURFOLD_EIGHT_RANKS();
  test::on_ranks(4, [](const Communicator& four) {
    for (const auto& [exponent, least, most] : {std::tuple{"1", 1.36, 1.48}, std::tuple{"0.5", 1.0, 1.15}}) {
      const Texts list = {"parallel.dense={data: 4}",
                          "parallel.moe={expert: 4}",
                          "model.moe.experts=16",
                          "model.moe.top_k=1",
                          "batch.global=64",
                          "model.moe.migration={every: 2, tau: 1, budget: 100}",
                          std::string("model.moe.forced={routing: zipf, exponent: ") + exponent + "}"};
      Job<double> run(list, four);
      run.trainer.step();
      EXPECT_FALSE(run.trainer.migrate());
      run.trainer.step();
      const auto look = run.trainer.migrate();
      ASSERT_TRUE(look);
      EXPECT_GT(look->layers[0].before, look->layers[0].after);
      EXPECT_GE(look->layers[0].after, least);
      EXPECT_LE(look->layers[0].after, most);
    }
  });
}

}  // namespace
}  // namespace fourfold
