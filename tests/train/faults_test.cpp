// Faults that users of other codes suffered from, each as a test named after its number in our list (P22 to P28, P32;
// P24, the gradient norm, is in tests/optim/norm_test.cpp).
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <optional>

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
#include "train/saved_tensors.hpp"
#include "train/trainer.hpp"

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

// A trainer and all that it stands on.
class Training {
 public:
  Training(const Deck& deck, const Communicator& world, const Deck* data = nullptr)
      : deck_(deck),
        comms_(test::grid_comms(deck, world)),
        loader_(data != nullptr ? *data : deck),
        pool_(memory_),
        trainer_(deck, comms_, loader_, pool_, trace_),
        saved_(trainer_.model().params(), &trainer_.optimizer(), comms_) {
    saved_.add_gradients(trainer_.plan());
  }

  Trainer<double>& trainer() { return trainer_; }
  ParamStore<double>& params() { return trainer_.model().params(); }
  StepReport step() { return trainer_.step(); }
  // The message of the check, empty where replicas agree.
  std::string check(const StepReport& report) {
    saved_.to_host();
    try {
      check_replicas(comms_.world(), report.step, saved_.shards(), report.batch_coordinate, report.samples_hash);
    } catch (const Error& error) {
      EXPECT_EQ(error.caller(), Caller::all_ranks);
      return error.what();
    }
    return "";
  }
  void record() {
    saved_.to_host();
    save_record(comms_.world(), deck_, saved_.shards(), {trainer_.steps_done(), trainer_.cursor()});
  }
  const std::vector<checkpoint::NamedShard>& shards() {
    saved_.to_host();
    return saved_.shards();
  }
  const GridComms& comms() const { return comms_; }

 private:
  Deck deck_;
  GridComms comms_;
  Loader loader_;
  MemoryLedger memory_;
  Pool pool_;
  Trace trace_;
  Trainer<double> trainer_;
  SavedTensors<double> saved_;
};

const Communicator& world() {
  return test::launch().world();
}

// Output weights of zero: the loss is ln V, whatever the vocabulary is cut into. Padding that took part would add to V.
TEST(KnownFaults, P22VocabularyPadding) {
  for (const std::int64_t vocab : {std::int64_t{257}, std::int64_t{50257}}) {
    for (const int row : {1, 2, 4, 8}) {
      SCOPED_TRACE("V " + std::to_string(vocab) + " row " + std::to_string(row));
      const DenseShape grid{.data = 8 / row, .row = row};
      Training run(test::deck_of(transformer(vocab), on_grid(grid, {"model.init.zero_head=true"}), 8), world());
      EXPECT_NEAR(run.step().loss, std::log(static_cast<double>(vocab)), 1e-12 * std::log(static_cast<double>(vocab)));
      for (const checkpoint::NamedShard& shard : run.shards()) {
        if (shard.name == "/params/head.weight") {
          EXPECT_EQ(shard.shard.shape[0], vocab) << "padding is never stored";
        }
      }
    }
  }
}

// Norm gradients are partial over row where the sequence is sharded: replicas stay equal over the steps, and a sum that
// misses row is seen at step 1.
TEST(KnownFaults, P23NormGradientsUnderSequenceSharding) {
  for (const DenseShape& grid : {DenseShape{.data = 2, .depth = 2, .row = 2}, DenseShape{.row = 4, .col = 2}}) {
    SCOPED_TRACE(name(grid));
    const Deck deck = test::deck_of(transformer(31), on_grid(grid, {"parallel.sequence_shard=true"}), 8);
    Training right(deck, world());
    for (int step = 0; step < (test::full() ? 20 : 4); ++step) ASSERT_EQ(right.check(right.step()), "");

    Training wrong(deck, world());
    for (std::size_t g = 0; g < wrong.params().groups().size(); ++g) {
      if (!wrong.params().groups()[g].sum_over.has(Axis::row)) continue;
      wrong.trainer().plan().group(g).sum = &wrong.comms().group(GroupKey{Axis::data, Axis::depth});
    }
    const std::string message = wrong.check(wrong.step());
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
  const auto weights = [](Training& run) {
    test::Tensors values;
    for (const checkpoint::NamedShard& shard : run.shards()) {
      const auto* data = static_cast<const double*>(shard.data);
      values[shard.name].assign(data, data + shard.shard.size());
    }
    return values;
  };
  Training serial(test::deck_of(transformer(31), on_grid({}), 1), alone);
  const test::Tensors whole = weights(serial);
  for (const DenseShape& grid : test::sample(dense_factorisations(8), 8)) {
    SCOPED_TRACE(name(grid));
    Training run(test::deck_of(transformer(31), on_grid(grid), 8), world());
    test::Shards shards;
    for (const checkpoint::NamedShard& shard : run.shards()) shards[shard.name] = shard.shard;
    EXPECT_EQ(weights(run), test::held_part(whole, shards));
  }
  const std::vector<double>& down = whole.at("/params/layers.0.ffn.down.weight");  // 16 x 24
  const auto half = down.begin() + std::ssize(down) / 2;
  EXPECT_FALSE(std::equal(down.begin(), half, half, down.end())) << "halves of a matrix are not the same draws";
}

// Peers on row and col read the same samples; one that reads by its own rank is named at step 1.
TEST(KnownFaults, P28PeersReadTheSameSamples) {
  const Deck deck = test::deck_of(transformer(31), on_grid({.data = 2, .row = 2, .col = 2}), 8);
  Training right(deck, world());
  EXPECT_EQ(right.check(right.step()), "");
  Deck other = deck;
  other.run.seed = 77;  // another order of the samples
  Training wrong(deck, world(), world().rank() == 6 ? &other : nullptr);
  const std::string message = wrong.check(wrong.step());
  EXPECT_TRUE(
      message.starts_with("step 1: replicas differ: the samples of batch coordinate 1: rank 6 differs from "
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
  Training run(test::deck_of(transformer(31), on_grid({.data = 2, .row = 2, .col = 2}), 8), world());
  for (int step = 1; step <= 5; ++step) ASSERT_EQ(run.check(run.step()), "");
  if (world().rank() == 3) {
    double* value = value_of(run.params(), "layers.1.ffn_norm.weight", false);
    ASSERT_NE(value, nullptr);
    value[4] = std::nextafter(value[4], 2.0);
  }
  const std::string message = run.check(run.step());
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
  Training plain(deck({.data = 8}, "plain"), world());
  Training other(deck({.row = 2, .col = 4}, "other"), world());
  Training wrong(deck({.row = 2, .col = 4}, "wrong"), world());
  for (Training* run : {&plain, &other, &wrong}) {
    run->step();
    if (run == &wrong) {
      for (Param<double>& param : run->params().params()) {
        if (param.spec.name != tensor) continue;
        for (Index i = 0; i < param.spec.shard.size(); ++i) param.grad(i) *= 1 + 1e-3;
      }
    }
    run->record();
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
