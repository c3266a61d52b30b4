// Training with a sharded update, and with sums of gradients in levels, gives the serial run's numbers; checkpoints
// move between all of them; `check` knows the bytes.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "comm/agree.hpp"
#include "comm/collectives.hpp"
#include "comm/launch.hpp"
#include "model/describe.hpp"
#include "mpi_test.hpp"
#include "runs.hpp"
#include "test_support.hpp"
#include "train/restart.hpp"

namespace fourfold {
namespace {

namespace fs = std::filesystem;
using Overrides = std::vector<std::string>;

const Communicator& world() {
  return test::launch().world();
}

std::string t0_fp64() {
  std::ifstream file(FOURFOLD_SOURCE_DIR "/inputs/t0.yaml");
  std::stringstream stream;
  stream << file.rdbuf();
  std::string text = stream.str();
  const std::string fp32 = "compute: fp32";
  return text.replace(text.find(fp32), fp32.size(), "compute: fp64");
}

struct Case {
  DenseShape grid;
  Overrides update;  // shard, gather, algorithm
};

std::string name(const Case& c) {
  std::string text = "data " + std::to_string(c.grid.data) + " depth " + std::to_string(c.grid.depth) + " row " +
                     std::to_string(c.grid.row) + " col " + std::to_string(c.grid.col);
  for (const std::string& each : c.update) text += " " + each;
  return text;
}

Overrides overrides(const Case& c, const Overrides& more) {
  Overrides list{
      "parallel.dense.data=" + std::to_string(c.grid.data), "parallel.dense.depth=" + std::to_string(c.grid.depth),
      "parallel.dense.row=" + std::to_string(c.grid.row), "parallel.dense.col=" + std::to_string(c.grid.col)};
  list.insert(list.end(), c.update.begin(), c.update.end());
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

// All grids of the launch's ranks that cut the batch, with every way to update and to sum.
std::vector<Case> cases(int global) {
  std::vector<Case> all;
  for (const DenseShape& grid : dense_factorisations(world().size())) {
    if (global % grid.coordinates() != 0 || 8 % grid.row != 0) continue;
    all.push_back({grid, {"optimizer.shard=data"}});
    all.push_back({grid, {"optimizer.shard=data", "optimizer.gather=lazy", "comm.gradient.algorithm=two_level"}});
    for (int n = 2; n < grid.data; ++n) {
      if (grid.data % n == 0) {
        all.push_back({grid, {"optimizer.shard={data_partial: " + std::to_string(n) + "}", "optimizer.gather=lazy"}});
      }
    }
    const int stride = grid.depth * grid.row * grid.col;
    for (int y = 2; y <= grid.data; ++y) {
      if (grid.data % y != 0) continue;
      const std::string dims =
          "comm.gradient.dims=[" + std::to_string(grid.data / y * stride) + ", " + std::to_string(y) + "]";
      all.push_back({grid, {"comm.gradient.algorithm=torus2d", dims}});
      all.push_back({grid, {"comm.gradient.algorithm=torus2d", dims, "optimizer.shard=data", "optimizer.gather=lazy"}});
    }
  }
  return all;
}

template <class Compare>
void compare(const std::string& yaml, const Overrides& more, int steps, const std::vector<Case>& chosen,
             Compare compare_steps) {
  const Communicator alone(world(), {world().rank()}, "alone");
  const auto reference = test::run_steps(test::deck_of(yaml, more, 1), alone, steps);
  const std::int64_t nodes_as_they_are = world().size();
  for (const Case& c : chosen) {
    SCOPED_TRACE(name(c));
    // Two nodes, where every sum has as many ranks on each.
    const bool two_nodes = world().size() == 8;
    test::launch().emulate_nodes(two_nodes ? 4 : nodes_as_they_are);
    test::Shards shards;
    const auto records =
        test::run_steps(test::deck_of(yaml, overrides(c, more), world().size()), world(), steps, &shards);
    for (std::size_t i = 0; i < records.size(); ++i) {
      SCOPED_TRACE("step " + std::to_string(i + 1));
      test::StepRecord expected = reference[i];
      expected.gradients = test::held_part(reference[i].gradients, shards);
      expected.weights = test::held_part(reference[i].weights, shards);
      compare_steps(expected, records[i]);
      if (testing::Test::HasFailure()) break;  // one grid's first step says enough
    }
    if (agree_any(world(), testing::Test::HasFailure())) break;
  }
  test::launch().emulate_nodes(nodes_as_they_are);
}

void expect_bitwise(const test::StepRecord& a, const test::StepRecord& b) {
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_EQ(a.grad_norm, b.grad_norm);
  EXPECT_EQ(a.gradients, b.gradients);
  if (!b.weights.empty()) {  // lazily gathered ones are read after the last step alone
    EXPECT_EQ(a.weights, b.weights);
  }
}

void expect_close(const test::StepRecord& a, const test::StepRecord& b) {
  constexpr double kTolerance = 1e-11;
  EXPECT_LE(std::abs(a.loss - b.loss), kTolerance * std::abs(a.loss));
  EXPECT_LE(std::abs(a.grad_norm - b.grad_norm), kTolerance * a.grad_norm);
  EXPECT_LE(test::difference(a.gradients, b.gradients), kTolerance);
  if (!b.weights.empty()) {
    EXPECT_LE(test::difference(a.weights, b.weights), kTolerance);
  }
}

TEST(Sharded, DyadicBitForBit) {
  const std::vector<Case> all = cases(48);
  compare(test::dyadic_mlp(), {}, 12, test::sample(all, 6), expect_bitwise);
  compare(test::dyadic_embedding(true), {}, 12, test::sample(all, 2), expect_bitwise);
  compare(test::dyadic_embedding(false), {}, 12, test::sample(all, 2), expect_bitwise);
}

int t0_steps() {
  return test::full() ? 5 : 3;
}

// Every kind of parameter whose values are still on their way when the next forward begins: a layer that read them
// without waiting would see those of the step before, since the outer level of a mesh moves only in the wait.
TEST(Sharded, LazyValuesReachTheNextForward) {
  if (world().size() != 8) GTEST_SKIP() << "NOT TESTED in this launch: the launch of 8 ranks runs it";
  const std::string yaml = R"(
run: {name: lazy, steps: 4, seed: 9}
model: {kind: transformer, layers: 2, hidden: 12, heads: 4, head_dim: 3, vocab: 29, sequence: 6, positions: learned,
        norm: layer, ffn: {kind: gelu, hidden: 20}, bias: all, tie_embeddings: false, init: {std: 0.2}}
data: {kind: synthetic, synthetic: dyadic, samples: 100}
batch: {global: 8}
optimizer: {kind: momentum, lr: 0.5, clip: 1.0}
precision: {compute: fp64}
)";
  const Overrides lazy{"optimizer.shard=data", "optimizer.gather=lazy"};
  std::vector<Case> all;
  for (const DenseShape& grid : {DenseShape{.data = 4, .row = 2}, DenseShape{.data = 4, .depth = 2}}) {
    all.push_back({grid, lazy});
    all.push_back({grid, {lazy[0], lazy[1], "comm.gradient.algorithm=torus2d", "comm.gradient.dims=[4, 2]"}});
    all.push_back({grid, {lazy[0], lazy[1], "comm.gradient.algorithm=two_level"}});
    all.push_back({grid, {"comm.gradient.algorithm=two_level"}});
  }
  compare(yaml, {}, 4, all, expect_close);
}

TEST(Sharded, TransformerTo1e11) {
  compare(t0_fp64(), {}, t0_steps(), test::sample(cases(16), 4), expect_close);
}
TEST(Sharded, LambTo1e11) {
  const Overrides lamb = {"optimizer={kind: lamb, lr: 1.0e-2, weight_decay: 0.01, clip: 1.0}"};
  compare(t0_fp64(), lamb, t0_steps(), test::sample(cases(16), 4), expect_close);
}
TEST(Sharded, LarsTo1e11) {
  const Overrides lars = {"optimizer={kind: lars, lr: 1.0, weight_decay: 0.0005, clip: 1.0}"};
  compare(t0_fp64(), lars, t0_steps(), test::sample(cases(16), 3), expect_close);
}

// Not sharded either: the norms of whole tensors, whatever they are split over.
TEST(Sharded, LambAndLarsOnEveryGrid) {
  std::vector<Case> grids;
  for (const Case& c : cases(16)) {
    if (grids.empty() || !(grids.back().grid == c.grid)) grids.push_back({c.grid, {}});
  }
  compare(t0_fp64(), {"optimizer.kind=lamb"}, t0_steps(), test::sample(grids, 3), expect_close);
  compare(t0_fp64(), {"optimizer.kind=lars"}, t0_steps(), test::sample(grids, 3), expect_close);
}

// Deterministic: any bucket, overlap or not, the gather early or late: the same bits on the same ranks.
TEST(Sharded, BucketsOverlapAndGatherChangeNoBit) {
  const std::string data = "parallel.dense.data=" + std::to_string(world().size());
  const std::string global = "batch.global=" + std::to_string(world().size() * 2);
  for (const std::string shard : {"none", "data"}) {
    std::vector<test::StepRecord> first;
    for (const Overrides& how : {Overrides{}, Overrides{"comm.bucket_bytes=640"},
                                 Overrides{"comm.bucket_bytes=5000", "parallel.overlap=false"},
                                 Overrides{"parallel.overlap=false", "optimizer.gather=lazy"}}) {
      Overrides list{"numerics.deterministic=true", "optimizer.shard=" + shard, data, global};
      list.insert(list.end(), how.begin(), how.end());
      const auto records = test::run_steps(test::deck_of(test::small_transformer(), list, world().size()), world(), 3);
      if (first.empty()) first = records;
      for (std::size_t i = 0; i < records.size(); ++i) expect_bitwise(first[i], records[i]);
    }
  }
}

// What the memory ledger counts is what `check` says, where the grid is all data; three optimizers of 2, 1, 0 moments.
TEST(Sharded, CheckKnowsTheBytes) {
  for (const std::string kind : {"lamb", "momentum", "sgd"}) {
    for (const std::string shard : {"none", "data", "{data_partial: 2}"}) {
      if (shard[0] == '{' && world().size() % 2 != 0) continue;
      for (const std::string positions : {"rope", "learned"}) {
        const Deck deck = test::deck_of(test::small_transformer(),
                                        {"optimizer.kind=" + kind, "optimizer.shard=" + shard, "model.bias=all",
                                         "model.positions=" + positions, "batch.global=48"},
                                        world().size());
        const test::Training<> run(deck, world());
        const MemoryLedger& ledger = run.memory;
        const MemoryPerRank memory = memory_per_rank(deck);
        EXPECT_EQ(ledger.live(MemoryTag::parameters), memory.parameters) << kind << " " << shard;
        EXPECT_EQ(ledger.live(MemoryTag::gradients), memory.gradients) << kind << " " << shard;
        EXPECT_EQ(ledger.live(MemoryTag::optimizer), memory.optimizer) << kind << " " << shard;
      }
    }
  }
}

std::string bytes_of(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  EXPECT_TRUE(stream) << file;
  return std::string(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
}

// One layout's part of the journey: load `from` (none at the start), save at once to `copy`, train on, save to `to`.
std::vector<double> leg(const Communicator& ranks, const Overrides& update, const std::string& folder,
                        const std::string& from, const std::string& copy, int steps, const std::string& to) {
  Overrides list{"run.folder=" + folder + "/" + from};
  list.insert(list.end(), update.begin(), update.end());
  test::Training<> run(test::deck_of(test::small_transformer(), list, ranks.size()), ranks);
  const auto save = [&](const std::string& name) {
    checkpoint::State state;
    state.numbers["cursor"] = run.trainer.cursor();
    state.texts["schedule"] = schedule_text(run.deck);
    state.texts["data"] = run.loader.fingerprint().text;
    checkpoint::SaveOptions options;
    options.run = "journey";
    if (ranks.rank() == 0) fs::create_directories(folder + "/" + name + "/checkpoints");
    barrier(ranks, Phase::control);
    checkpoint::save(ranks, folder + "/" + name + "/checkpoints", run.trainer.steps_done(), run.shards(), state,
                     options);
  };
  if (!copy.empty()) {
    const auto position = load_newest_checkpoint(ranks, run.deck, run.loader, run.shards(), {});
    EXPECT_TRUE(position);
    run.saved.to_device();
    run.trainer.resume(position->step, position->cursor);
    save(copy);
  }
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i) losses.push_back(run.trainer.step().loss);
  if (!to.empty()) save(to);
  return losses;
}

// Saved on 4 ranks, resumed on 3 and on 8 with other parts: weights and moments as read are those saved to the bit (a
// checkpoint written at once is the same file), and training goes on as the serial run does.
TEST(Sharded, CheckpointsMoveBetweenAllParts) {
  if (world().size() != 8) GTEST_SKIP() << "NOT TESTED in this launch: the launch of 8 ranks runs it";
  std::string folder = (fs::temp_directory_path() / "fourfold_sharded_XXXXXX").string();
  if (world().rank() == 0 && mkdtemp(folder.data()) == nullptr) folder.clear();
  folder = broadcast_string(world(), folder);
  const Communicator alone(world(), {world().rank()}, "alone");
  for (const std::string kind : {"adamw", "lars"}) {
    const std::string optimizer = "optimizer.kind=" + kind;
    std::vector<double> serial;
    for (const auto& record : test::run_steps(test::deck_of(test::small_transformer(), {optimizer}, 1), alone, 5)) {
      serial.push_back(record.loss);
    }
    const auto saved = [&](const std::string& name) {
      return folder + "/" + kind + "_" + name + "/checkpoints/step_00000003.h5";
    };
    const auto go = [&](int ranks, Overrides update, const std::string& from, const std::string& copy, int steps,
                        const std::string& to) {
      update.push_back(optimizer);
      const auto in = [&](const std::string& each) { return each.empty() ? each : kind + "_" + each; };
      test::on_ranks(ranks, [&](const Communicator& group) {
        const auto losses = leg(group, update, folder, in(from), in(copy), steps, in(to));
        for (std::size_t i = 0; i < losses.size(); ++i) {
          const double expected = serial[copy.empty() ? i : 3 + i];
          EXPECT_NEAR(losses[i], expected, 1e-11 * expected) << ranks << " ranks, loss " << i;
        }
      });
    };
    go(4, {"optimizer.shard=data", "optimizer.gather=lazy"}, "none", "", 3, "four");
    go(3, {"optimizer.shard=data"}, "four", "three", 2, "");
    go(8, {"optimizer.shard={data_partial: 4}"}, "four", "eight", 2, "");
    std::vector<std::string> copies = {"three", "eight"};
    if (test::full() || kind == "lars") {
      go(8, {"optimizer.shard=data", "parallel.dense.depth=2", "parallel.dense.row=2"}, "four", "grid", 2, "");
      go(1, {}, "four", "one", 2, "");
      copies.insert(copies.end(), {"grid", "one"});
    }
    if (world().rank() != 0) continue;
    for (const std::string& other : copies) {
      EXPECT_EQ(bytes_of(saved("four")), bytes_of(saved(other))) << kind << ", " << other;
    }
  }
  barrier(world(), Phase::control);
  std::error_code ignored;
  if (world().rank() == 0) fs::remove_all(folder, ignored);
}

}  // namespace
}  // namespace fourfold
