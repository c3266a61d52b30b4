// What `fourfold check` says a rank holds, against the memory ledger of the real thing, by integer equality on every
// rank: parameters, gradients, moments, and what forward keeps for backward.
#include <gtest/gtest.h>

#include "comm/launch.hpp"
#include "model/describe.hpp"
#include "mpi_test.hpp"
#include "runs.hpp"
#include "test_support.hpp"
#include "train/micro_batch.hpp"

namespace fourfold {
namespace {

// Returns the padding of this rank's buffers, in elements.
template <class T>
Index expect_ledger(const std::string& yaml, std::vector<std::string> overrides, const std::string& precision) {
  const Communicator& world = test::launch().world();
  overrides.push_back("precision.compute=" + precision);
  std::string trace_text = yaml.substr(0, 90);
  for (const std::string& each : overrides) trace_text += " " + each;
  SCOPED_TRACE(trace_text);
  const Deck deck = test::deck_of(yaml, overrides, world.size());
  test::Training<T> run(deck, world);
  const GridComms& comms = run.comms;
  const MemoryLedger& ledger = run.memory;
  run.trainer.step();  // leaves nothing behind

  const MemoryPerRank told = memory_of_rank(deck, comms.here());
  EXPECT_EQ(ledger.peak(MemoryTag::optimizer), told.optimizer + told.update);
  EXPECT_EQ(ledger.live(MemoryTag::parameters), told.parameters);
  EXPECT_EQ(ledger.live(MemoryTag::gradients), told.gradients);
  EXPECT_EQ(ledger.live(MemoryTag::optimizer), told.optimizer);
  EXPECT_EQ(ledger.live(MemoryTag::activations), 0);
  const BatchCoordinate coordinate = batch_coordinate(deck.parallel, comms);
  const Batch batch = run.loader.micro_batch(0, 0, coordinate.count, coordinate.index, {});
  const MicroBatch<T> micro = make_micro_batch<T>(deck, comms, batch, run.pool);
  Pass<T> pass;
  pass.batch = &micro;
  pass.training = true;
  pass.step = 2;
  Activations<T> kept;
  run.trainer.model().forward(pass, kept);
  EXPECT_EQ(ledger.live(MemoryTag::activations), told.activations);
  run.trainer.model().backward(pass, kept);
  EXPECT_EQ(ledger.live(MemoryTag::activations), 0);

  // The rank that has most is the one that `check` shows.
  const MemoryPerRank most = memory_per_rank(deck);
  std::int64_t largest = told.total();
  all_reduce_max<std::int64_t>(world, {&largest, 1}, Phase::control);
  EXPECT_EQ(largest, most.total());

  Index padding = 0;
  for (const ParamGroup<T>& group : run.params().groups()) padding += group.values.size() - group.size;
  return padding;
}

std::vector<std::vector<std::string>> grids() {
  const auto grid = [](int depth, int row, int col, std::vector<std::string> more) {
    more.push_back("parallel.dense.depth=" + std::to_string(depth));
    more.push_back("parallel.dense.row=" + std::to_string(row));
    more.push_back("parallel.dense.col=" + std::to_string(col));
    return more;
  };
  const std::string tokens = "parallel.depth_splits=sequence", shard = "parallel.sequence_shard=true",
                    split = "attention.split=col";
  return {grid(1, 1, 1, {}),
          grid(2, 2, 2, {}),
          grid(1, 4, 2, {}),
          grid(4, 1, 2, {}),
          grid(2, 2, 2, {tokens}),
          grid(8, 1, 1, {tokens}),
          grid(1, 4, 1, {shard}),
          grid(4, 2, 1, {tokens, shard}),
          grid(1, 2, 4, {split}),
          grid(1, 1, 8, {split}),
          grid(2, 2, 2, {tokens, shard, split}),
          grid(2, 1, 4, {tokens, split})};
}

TEST(Memory, P66TransformerIsToldToTheByte) {
  if (test::launch().world().size() != 8) GTEST_SKIP() << "NOT TESTED in this launch: the launch of 8 ranks runs it";
  // Sizes that do not divide; every term that a model can have.
  const std::vector<std::string> odd = {"model.hidden=19",     "model.vocab=37",          "model.sequence=21",
                                        "model.ffn.hidden=25", "model.ffn.kind=gelu",     "model.norm=layer",
                                        "model.bias=all",      "model.positions=learned", "model.tie_embeddings=true",
                                        "model.dropout=0",     "optimizer.kind=momentum"};
  for (const auto& grid : test::sample(grids(), 6)) {
    expect_ledger<double>(test::small_transformer(), grid, "fp64");
    std::vector<std::string> overrides = grid;
    overrides.insert(overrides.end(), odd.begin(), odd.end());
    expect_ledger<float>(test::small_transformer(), overrides, "fp32");
    expect_ledger<kernels::bf16>(test::small_transformer(), overrides, "bf16");
  }
}

// Parts of the update and buffers of sums in levels, padded apart in every group, on grids that cut the weights too;
// lamb's direction, which lives while an update lasts.
TEST(Memory, P66ShardedUpdatesAreToldToTheByte) {
  if (test::launch().world().size() != 8) GTEST_SKIP() << "NOT TESTED in this launch: the launch of 8 ranks runs it";
  const std::string sharded = "optimizer.shard=data", partial = "optimizer.shard={data_partial: 2}",
                    torus = "comm.gradient={algorithm: torus2d, dims: [4, 2]}",
                    levels = "comm.gradient.algorithm=two_level";
  struct Case {
    int depth, row, col;
    std::vector<std::string> how;
  };
  const std::vector<Case> cases = {{1, 2, 1, {sharded, "optimizer.kind=lamb"}},
                                   {1, 1, 2, {partial, "optimizer.kind=lamb"}},
                                   {2, 1, 1, {torus, "optimizer.kind=lamb"}},
                                   {2, 1, 1, {torus, sharded}},
                                   {1, 2, 1, {torus, sharded}},
                                   {2, 2, 1, {sharded}},
                                   {2, 1, 2, {torus, "optimizer.kind=sgd"}},
                                   {2, 1, 1, {partial}},
                                   {1, 2, 2, {partial}},
                                   {1, 2, 1, {levels, sharded, "optimizer.kind=lamb"}},
                                   {2, 1, 2, {levels}},
                                   {2, 2, 1, {sharded, "parallel.sequence_shard=true"}},
                                   {2, 2, 2, {sharded, "optimizer.kind=lamb"}}};
  Index padding = 0;
  test::launch().emulate_nodes(4);
  for (const Case& c : test::sample(cases, 6)) {
    // Odd sizes, so that buffers are padded.
    std::vector<std::string> overrides = {"parallel.dense.depth=" + std::to_string(c.depth),
                                          "parallel.dense.row=" + std::to_string(c.row),
                                          "parallel.dense.col=" + std::to_string(c.col),
                                          "model.layers=1",
                                          "model.hidden=19",
                                          "model.vocab=37",
                                          "model.ffn.hidden=25",
                                          "model.bias=all"};
    overrides.insert(overrides.end(), c.how.begin(), c.how.end());
    padding += expect_ledger<double>(test::small_transformer(), overrides, "fp64");
    expect_ledger<kernels::bf16>(test::small_transformer(), overrides, "bf16");
  }
  test::launch().emulate_nodes(test::launch().world().size());
  EXPECT_GT(padding, 0);
}

TEST(Memory, P66PlainNetsAreToldToTheByte) {
  if (test::launch().world().size() != 8) GTEST_SKIP() << "NOT TESTED in this launch: the launch of 8 ranks runs it";
  for (const auto& [depth, row, col] : {std::array{2, 2, 2}, std::array{1, 4, 2}, std::array{1, 2, 4}}) {
    const std::vector<std::string> grid = {"parallel.dense.depth=" + std::to_string(depth),
                                           "parallel.dense.row=" + std::to_string(row),
                                           "parallel.dense.col=" + std::to_string(col)};
    std::vector<std::string> sharded = grid;
    sharded.push_back("parallel.sequence_shard=true");
    sharded.push_back("model.sequence=5");
    expect_ledger<double>(test::dyadic_mlp(), grid, "fp64");
    expect_ledger<double>(test::dyadic_embedding(true), grid, "fp64");
    expect_ledger<double>(test::dyadic_embedding(false), sharded, "fp64");
    sharded.insert(sharded.end(), {"numerics.snap=0", "optimizer.shard=data", "optimizer.kind=lamb"});
    std::vector<std::string> plain = sharded;
    std::erase_if(plain,
                  [](const std::string& key) { return key.starts_with("model.") || key.ends_with("_shard=true"); });
    expect_ledger<kernels::bf16>(test::dyadic_mlp(), plain, "bf16");
    expect_ledger<kernels::bf16>(test::dyadic_embedding(true), sharded, "bf16");
  }
}

}  // namespace
}  // namespace fourfold
