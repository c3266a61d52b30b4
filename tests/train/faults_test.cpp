// Faults that users of other codes suffered from, each as a test named after its number in our list (P22 to P28, P32;
// P24, the gradient norm, is in tests/optim/norm_test.cpp).
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/error.hpp"
#include "checkpoint/inspect.hpp"
#include "comm/launch.hpp"
#include "grid/process_grid.hpp"
#include "mpi_test.hpp"
#include "runs.hpp"
#include "test_support.hpp"
#include "train/micro_batch.hpp"
#include "train/replica_check.hpp"
#include "train/restart.hpp"

namespace fourfold {
namespace {

std::vector<std::string> on_grid(const DenseShape& g, std::vector<std::string> more = {}) {
  more.push_back("parallel.dense.data=" + std::to_string(g.data));
  more.push_back("parallel.dense.depth=" + std::to_string(g.depth));
  more.push_back("parallel.dense.row=" + std::to_string(g.row));
  more.push_back("parallel.dense.col=" + std::to_string(g.col));
  return more;
}

std::string name(const DenseShape& g) {
  return "data " + std::to_string(g.data) + " depth " + std::to_string(g.depth) + " row " + std::to_string(g.row) +
         " col " + std::to_string(g.col);
}

std::string transformer(std::int64_t vocab, const std::string& more = "") {
  return R"(
run: {name: faults, steps: 20, seed: 5}
model: {kind: transformer, layers: 2, hidden: 16, heads: 8, kv_heads: 2, head_dim: 4, vocab: )" +
         std::to_string(vocab) + R"(, sequence: 16,
        positions: rope, norm: rms, ffn: {kind: swiglu, hidden: 24}, init: {std: 0.2}}
data: {kind: synthetic, synthetic: dyadic, samples: 500}
batch: {global: 8}
optimizer: {kind: momentum, lr: 1.0e-2, clip: 1.0}
precision: {compute: fp64}
debug: {replica_check: 1}
)" + more;
}

const Communicator& world() {
  return test::launch().world();
}

// The message of the replica check, empty where replicas agree.
std::string disagreement(std::int64_t step, const std::vector<checkpoint::NamedShard>& shards,
                         const BatchCoordinate& coordinate = {}, std::uint64_t samples_hash = 0) {
  try {
    check_replicas(world(), step, shards, coordinate, samples_hash);
  } catch (const Error& error) {
    EXPECT_EQ(error.caller(), Caller::all_ranks);
    return error.what();
  }
  return "";
}

// After one more step.
std::string disagreement(test::Training<>& run) {
  const StepReport report = run.trainer.step();
  return disagreement(report.step, run.shards(), report.coordinate, report.samples_hash);
}

// Output weights of zero: the loss is ln V, whatever the vocabulary is cut into. Padding that took part would add to V.
TEST(KnownFaults, P22VocabularyPadding) {
  for (const std::int64_t vocab : {std::int64_t{257}, std::int64_t{50257}}) {
    for (const int row : {1, 2, 4, 8}) {
      SCOPED_TRACE("V " + std::to_string(vocab) + " row " + std::to_string(row));
      const DenseShape grid{.data = 8 / row, .row = row};
      test::Training<> run(test::deck_of(transformer(vocab), on_grid(grid, {"model.init.zero_head=true"}), 8), world());
      EXPECT_NEAR(run.trainer.step().loss, std::log(static_cast<double>(vocab)),
                  1e-12 * std::log(static_cast<double>(vocab)));
      for (const checkpoint::NamedShard& shard : run.shards()) {
        if (shard.name == "/params/head.weight") {
          EXPECT_EQ(shard.shard.shape[0], vocab) << "padding is never stored";
        }
      }
    }
  }
}

// After a first backward of the same model whose sums leave out row.
std::string disagreement_without_row(test::Training<>& run) {
  Model<double> model(run.deck, run.comms, run.pool);
  for (ParamGroup<double>& group : model.params().groups()) {
    if (group.sum_over.has(Axis::row)) group.sum_over = GroupKey{Axis::data, Axis::depth};
  }
  const UpdatePlan plan(run.deck, run.comms, model.params());
  const BatchCoordinate coordinate = batch_coordinate(run.deck.parallel, run.comms);
  const Batch batch = run.loader.micro_batch(0, 0, coordinate.count, coordinate.index, {});
  const MicroBatch<double> micro = make_micro_batch<double>(run.deck, run.comms, batch, run.pool);
  Pass<double> pass;
  pass.batch = &micro;
  pass.training = true;
  pass.step = 1;
  Activations<double> kept;
  model.forward(pass, kept);
  model.backward(pass, kept);
  Reducer<double>(run.deck, plan, run.comms, model.params()).reduce();
  SavedTensors<double> saved(model, nullptr, run.comms);
  saved.add_gradients(plan);
  saved.to_host();
  return disagreement(1, saved.shards());
}

// Norm gradients are partial over row where the sequence is sharded: replicas stay equal over the steps, and a sum that
// misses row is seen at step 1.
TEST(KnownFaults, P23NormGradientsUnderSequenceSharding) {
  for (const DenseShape& grid : {DenseShape{.data = 2, .depth = 2, .row = 2}, DenseShape{.row = 4, .col = 2}}) {
    SCOPED_TRACE(name(grid));
    const Deck deck = test::deck_of(transformer(31), on_grid(grid, {"parallel.sequence_shard=true"}), 8);
    test::Training<> right(deck, world());
    right.saved.add_gradients(right.trainer.plan());
    for (int step = 0; step < (test::full() ? 20 : 4); ++step) ASSERT_EQ(disagreement(right), "");

    const std::string message = disagreement_without_row(right);
    EXPECT_TRUE(message.starts_with("step 1: replicas differ: ")) << message;
    EXPECT_NE(message.find("norm"), std::string::npos) << message;
  }
}

// Token losses are summed and divided once by the global count of targets, however unequal the parts are.
TEST(KnownFaults, P25TokensAreWeightedEqually) {
  const Deck pair = test::deck_of(transformer(31), on_grid({.data = 8}), 8);
  const GridComms comms = test::grid_comms(pair, world());
  // Rank 0: three targets, sum 6; rank 1: one, sum 10; the others none. A mean of means would be 6.
  const LossSum mine = world().rank() == 0 ? LossSum{6, 3} : world().rank() == 1 ? LossSum{10, 1} : LossSum{};
  const LossSum all = sum_over_coordinates(mine, comms, Phase::update);
  EXPECT_EQ(all.loss / static_cast<double>(all.targets), 4.0);

  // Goldfish loss takes other targets from every sample: all grids and micro-batches give the same numbers.
  const std::string yaml = transformer(31, "loss: {goldfish: {k: 2, h: 3}}\n");
  const Communicator alone(world(), {world().rank()}, "alone");
  const auto expected = test::run_steps(test::deck_of(yaml, on_grid({}), 1), alone, 3);
  struct Case {
    DenseShape grid;
    std::int64_t micro_batches = 1;
    std::string splits = "batch";
  };
  std::vector<Case> cases;
  for (const DenseShape& grid : dense_factorisations(8)) {
    for (const std::int64_t micro_batches : {1, 2}) {
      if (8 % (grid.coordinates() * micro_batches) == 0) cases.push_back({grid, micro_batches});
      if (grid.depth > 1 && 8 % (grid.data * micro_batches) == 0) cases.push_back({grid, micro_batches, "sequence"});
    }
  }
  std::vector<Case> chosen = test::sample(cases, 6);
  chosen.push_back({{.data = 2, .depth = 4}, 1, "sequence"});
  for (const auto& [grid, micro_batches, splits] : chosen) {
    {
      SCOPED_TRACE(name(grid) + ", " + std::to_string(micro_batches) + " micro-batches, depth splits " + splits);
      test::Shards shards;
      const auto records =
          test::run_steps(test::deck_of(yaml,
                                        on_grid(grid, {"batch.micro_batches=" + std::to_string(micro_batches),
                                                       "parallel.depth_splits=" + splits}),
                                        8),
                          world(), 3, &shards);
      for (std::size_t i = 0; i < records.size(); ++i) {
        EXPECT_NEAR(records[i].loss, expected[i].loss, 1e-11 * expected[i].loss);
        EXPECT_NEAR(records[i].grad_norm, expected[i].grad_norm, 1e-11 * expected[i].grad_norm);
        EXPECT_LE(test::difference(test::held_part(expected[i].weights, shards), records[i].weights), 1e-10);
      }
    }
  }
}

// One parameter serves the embedding and the head: one gradient, one update, stored once.
TEST(KnownFaults, P26TiedEmbeddings) {
  const std::vector<std::string> tied{"model.tie_embeddings=true"};
  const Communicator alone(world(), {world().rank()}, "alone");
  const auto expected = test::run_steps(test::deck_of(transformer(31), on_grid({}, tied), 1), alone, 3);
  EXPECT_FALSE(expected[0].weights.contains("head.weight"));
  for (const DenseShape& grid : {DenseShape{.row = 8}, DenseShape{.depth = 2, .row = 2, .col = 2}}) {
    SCOPED_TRACE(name(grid));
    const Deck deck = test::deck_of(transformer(31), on_grid(grid, tied), 8);
    test::Shards shards;
    const auto records = test::run_steps(deck, world(), 3, &shards);
    for (std::size_t i = 0; i < records.size(); ++i) {
      const auto gradients = test::held_part(expected[i].gradients, shards);
      EXPECT_LE(test::difference(gradients, records[i].gradients), 1e-10);
      EXPECT_NEAR(records[i].grad_norm, expected[i].grad_norm, 1e-11 * expected[i].grad_norm) << "counted once";
    }
  }
}

// Every initial value is a function of the seed, the parameter's name and the index in the logical tensor.
TEST(KnownFaults, P27InitialWeightsDoNotDependOnTheGrid) {
  const Communicator alone(world(), {world().rank()}, "alone");
  const test::Training<> serial(test::deck_of(transformer(31), on_grid({}), 1), alone);
  const test::Tensors whole = test::values_of(serial.shards());
  for (const DenseShape& grid : test::sample(dense_factorisations(8), 8)) {
    SCOPED_TRACE(name(grid));
    const test::Training<> run(test::deck_of(transformer(31), on_grid(grid), 8), world());
    test::Shards shards;
    for (const checkpoint::NamedShard& shard : run.shards()) shards[shard.name] = shard.shard;
    EXPECT_EQ(test::values_of(run.shards()), test::held_part(whole, shards));
  }
  const std::vector<double>& down = whole.at("/params/layers.0.ffn.down.weight");  // 16 x 24
  const auto half = down.begin() + std::ssize(down) / 2;
  EXPECT_FALSE(std::equal(down.begin(), half, half, down.end())) << "halves of a matrix are not the same draws";
}

// Peers on row and col read the same samples; one that reads by its own rank is named at step 1.
TEST(KnownFaults, P28PeersReadTheSameSamples) {
  const Deck deck = test::deck_of(transformer(31), on_grid({.data = 2, .row = 2, .col = 2}), 8);
  test::Training<> right(deck, world());
  EXPECT_EQ(disagreement(right), "");
  Deck other = deck;
  other.run.seed = 77;  // another order of the samples
  test::Training<> wrong(deck, world(), world().rank() == 6 ? &other : nullptr);
  const std::string message = disagreement(wrong);
  EXPECT_TRUE(
      message.starts_with("step 1: replicas differ: the samples of batch coordinate 1 of 2: rank 6 differs from "
                          "ranks 4, 5, 7"))
      << message;
}

std::string folder(const std::string& run) {
  return (std::filesystem::path(testing::TempDir()) / ("fourfold_faults_" + run)).string();
}

double* value_of(ParamStore<double>& store, const std::string& wanted, bool gradient) {
  for (Param<double>& param : store.params()) {
    if (param.spec.name == wanted) return gradient ? param.grad.data() : param.value.data();
  }
  return nullptr;
}

// One flipped bit of a replica at step 5 is named at the next check. (col cuts the norms: each has four replicas.)
TEST(KnownFaults, P32FlippedBitOfAReplica) {
  test::Training<> run(test::deck_of(transformer(31), on_grid({.data = 2, .row = 2, .col = 2}), 8), world());
  for (int step = 1; step <= 5; ++step) ASSERT_EQ(disagreement(run), "");
  if (world().rank() == 3) {
    double* value = value_of(run.params(), "layers.1.ffn_norm.weight", false);
    ASSERT_NE(value, nullptr);
    value[4] = std::nextafter(value[4], 2.0);
  }
  const std::string message = disagreement(run);
  EXPECT_TRUE(
      message.starts_with("step 6: replicas differ: /params/layers.1.ffn_norm.weight: rank 3 differs from "
                          "ranks 1, 5, 7"))
      << message;
}

// Two runs on different grids, one with an error of 1e-3 in one gradient: the comparison names that tensor at step 1.
TEST(KnownFaults, P32CompareNamesStepAndTensor) {
  const std::string tensor = "layers.1.attention.output.weight";
  const auto deck = [](const DenseShape& grid, const std::string& run) {
    return test::deck_of(transformer(31), on_grid(grid, {"run.folder=" + folder(run)}), 8);
  };
  for (const char* run : {"plain", "other", "wrong"}) {
    if (world().rank() == 0) std::filesystem::remove_all(folder(run));
  }
  test::Training<> plain(deck({.data = 8}, "plain"), world());
  test::Training<> other(deck({.row = 2, .col = 4}, "other"), world());
  test::Training<> wrong(deck({.row = 2, .col = 4}, "wrong"), world());
  for (test::Training<>* run : {&plain, &other, &wrong}) {
    run->trainer.step();
    if (run == &wrong) {
      for (Param<double>& param : run->params().params()) {
        if (param.spec.name != tensor) continue;
        for (Index i = 0; i < param.spec.shard.size(); ++i) param.grad(i) *= 1 + 1e-3;
      }
    }
    run->saved.add_gradients(run->trainer.plan());
    save_record(world(), run->deck, run->shards(), {run->trainer.steps_done(), run->trainer.cursor()});
  }
  if (world().rank() != 0) return;
  const auto beyond = [](const std::string& run) {
    std::vector<std::string> names;
    for (const auto& difference : checkpoint::compare_steps(folder("plain") + "/record", folder(run) + "/record", 1)) {
      if (difference.relative() > 1e-11) names.push_back(difference.name);
    }
    return names;
  };
  EXPECT_EQ(beyond("other"), std::vector<std::string>{});
  EXPECT_EQ(beyond("wrong"), std::vector<std::string>{"/gradients/" + tensor});
  for (const char* run : {"plain", "other", "wrong"}) std::filesystem::remove_all(folder(run));
}

}  // namespace
}  // namespace fourfold
