// What a run with experts holds and leaves: memory by the ledger, checkpoints, metrics.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "comm/agree.hpp"
#include "comm/collectives.hpp"
#include "moe_runs.hpp"
#include "test_support.hpp"
#include "train/loop.hpp"
#include "train/micro_batch.hpp"
#include "train/restart.hpp"

namespace fourfold {
namespace {

using test::Folding;
using test::foldings;
using test::odd_moe;
using test::overrides;
using test::t0_moe;
using test::Texts;
using test::world;

// --- memory ---

template <class T>
void expect_ledger(Texts list, const std::string& precision) {
  list.push_back("precision.compute=" + precision);
  std::string text;
  for (const std::string& each : list) text += " " + each;
  SCOPED_TRACE(text);
  const Deck deck = test::deck_of(odd_moe(), list, world().size());
  test::Training<T> run(deck, world());
  run.trainer.step();
  const MemoryPerRank told = memory_of_rank(deck, run.comms.here());
  EXPECT_EQ(run.memory.live(MemoryTag::parameters), told.parameters);
  EXPECT_EQ(run.memory.live(MemoryTag::gradients), told.gradients);
  EXPECT_EQ(run.memory.live(MemoryTag::optimizer), told.optimizer);
  EXPECT_EQ(run.memory.peak(MemoryTag::optimizer), told.optimizer + told.update);
  EXPECT_EQ(run.memory.live(MemoryTag::activations), 0);
}

TEST(Moe, HeldBytesAreToldExactly) {
  FOURFOLD_EIGHT_RANKS();
  for (const Folding& f : test::sample(foldings(8, 6), 4)) {
    expect_ledger<double>(overrides(f), "fp64");
    Texts sharded = overrides(f);
    sharded.insert(sharded.end(), {"optimizer.shard=data", "optimizer.kind=lamb"});
    expect_ledger<kernels::bf16>(sharded, "bf16");
  }
}

// What forward leaves for the backward, with even loads; of uneven parts of the tokens a little more or less.
template <class T>
void expect_activations(Texts list, const std::string& precision, double tolerance) {
  list.insert(list.end(), {"precision.compute=" + precision, "model.moe.forced.routing=uniform"});
  std::string text;
  for (const std::string& each : list) text += " " + each;
  SCOPED_TRACE(text);
  const Deck deck = test::deck_of(t0_moe(), list, world().size());
  test::Training<T> run(deck, world());
  const BatchCoordinate coordinate = batch_coordinate(deck.parallel, run.comms);
  const Batch batch = run.loader.micro_batch(0, 0, coordinate.count, coordinate.index, {});
  const MicroBatch<T> micro = make_micro_batch<T>(deck, run.comms, batch, run.pool);
  Pass<T> pass;
  pass.batch = &micro;
  pass.training = true;
  pass.step = 1;
  pass.step_sequences = deck.batch.global;
  Activations<T> kept;
  run.trainer.model().forward(pass, kept);
  const auto told = static_cast<double>(memory_of_rank(deck, run.comms.here()).activations);
  EXPECT_NEAR(static_cast<double>(run.memory.live(MemoryTag::activations)), told, tolerance * told);
  run.trainer.model().backward(pass, kept);
  EXPECT_EQ(run.memory.live(MemoryTag::activations), 0);
}

TEST(Moe, ActivationsAreTold) {
  FOURFOLD_EIGHT_RANKS();
  const Texts shared = {"model.moe.shared_hidden=32", "model.moe.shared_gate=true"};
  const std::vector<Texts> options = {{},
                                      {"model.moe.permute=fused_weight", "parallel.activations.sublayers=[ffn]"},
                                      {"model.moe.dispatcher=allgather", "model.moe.jitter=0.1"},
                                      {"parallel.activations.default=recompute"},
                                      shared,
                                      {"model.moe.shared_hidden=32", "parallel.sequence_shard=true"},
                                      {"parallel.depth_splits=sequence", "model.moe.balance.scope=micro_batch"}};
  for (const Folding& f : test::sample(foldings(8, 8), 2)) {
    for (const Texts& how : test::sample(options, 3)) {
      Texts list = overrides(f);
      list.insert(list.end(), how.begin(), how.end());
      expect_activations<double>(list, "fp64", 0.05);
      expect_activations<kernels::bf16>(list, "bf16", 0.05);
    }
  }
}

// --- restart ---

TEST(Moe, RestartOnAnotherFolding) {
  FOURFOLD_EIGHT_RANKS();
  const std::string folder = broadcast_string(
      world(),
      (std::filesystem::path(testing::TempDir()) / ("fourfold_moe_restart_" + std::to_string(getpid()))).string());
  const std::vector<Folding> all = foldings(8, 6);
  struct Job : test::Training<> {
    Job(const Texts& list, const Communicator& ranks) : Training(test::deck_of(odd_moe(), list, ranks.size()), ranks) {}
  };
  const Communicator alone(world(), {world().rank()}, "alone");
  Job unbroken({}, alone);
  for (int step = 0; step < 3; ++step) unbroken.trainer.step();
  const test::Tensors expected = test::values_of(unbroken.shards());
  for (const Folding& from : test::sample(all, 2)) {
    Texts list = overrides(from);
    list.push_back("run.folder=" + folder);
    if (world().rank() == 0) std::filesystem::remove_all(folder);
    barrier(world(), Phase::control);
    {
      Job writer(list, world());
      writer.trainer.step();
      writer.trainer.step();
      prepare_folder(world(), writer.deck);
      save_checkpoint(world(), writer.deck, writer.loader, writer.shards(),
                      {writer.trainer.steps_done(), writer.trainer.cursor()}, {}, {});
    }
    for (const Folding& to : test::sample(all, 2)) {
      Job reader(overrides(to), world());
      const checkpoint::Restart restart =
          checkpoint::load_newest(world(), folder + "/checkpoints", reader.saved.shards());
      ASSERT_TRUE(restart.loaded);
      reader.saved.to_device();
      reader.trainer.resume(restart.loaded->state.integer("step"), restart.loaded->state.integer("cursor"));
      reader.trainer.step();
      test::Shards shards;
      for (const checkpoint::NamedShard& shard : reader.shards()) shards[shard.name] = shard.shard;
      test::expect_part(expected, test::values_of(reader.shards()), shards, 1e-11);
      if (agree_any(world(), testing::Test::HasFailure())) return;
    }
  }
  barrier(world(), Phase::control);
  if (world().rank() == 0) std::filesystem::remove_all(folder);
}

// --- the loop ---

TEST(Moe, MetricsHoldLossesAndLoads) {
  FOURFOLD_EIGHT_RANKS();
  const std::string folder =
      broadcast_string(world(), (std::filesystem::path(testing::TempDir()) / "fourfold_moe_metrics").string());
  if (world().rank() == 0) std::filesystem::remove_all(folder);
  barrier(world(), Phase::control);
  const Texts list = {"run.folder=" + folder, "run.steps=2", "parallel.stages=2", "parallel.moe.expert=2",
                      "model.moe.capacity.factor=0.5"};
  const Deck deck = test::deck_of(odd_moe(), list, 8);
  const GridComms comms = test::grid_comms(deck, world());
  MemoryLedger memory;
  Pool pool(memory);
  EXPECT_EQ(train<double>(deck, comms, pool, {}), ExitCode::done);
  if (world().rank() == 0) {
    std::ifstream file(folder + "/metrics.jsonl");
    std::string line;
    ASSERT_TRUE(std::getline(file, line));
    const auto moe = nlohmann::json::parse(line).at("moe");
    EXPECT_GT(moe.at("aux_loss").get<double>(), 0.5);
    EXPECT_GT(moe.at("z_loss").get<double>(), 0);
    ASSERT_EQ(moe.at("layers").size(), 1u);
    const auto& layer = moe.at("layers")[0];
    EXPECT_EQ(layer.at("layer"), 1);
    EXPECT_GT(layer.at("dropped").get<double>(), 0.4);
    EXPECT_LT(layer.at("dropped").get<double>(), 1);
    EXPECT_GE(layer.at("max_load").get<double>(), 1);
    EXPECT_LE(layer.at("entropy").get<double>(), std::log(6.0) + 1e-12);
    std::filesystem::remove_all(folder);
  }
  barrier(world(), Phase::control);
}

}  // namespace
}  // namespace fourfold
