// Every factorisation of the ranks into data x depth x row x col gives the serial run's numbers: outputs (through the
// loss), every gradient, the norm and the weights after each step. One launch of 8 (or 12) ranks loops over the grids.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "comm/agree.hpp"
#include "comm/launch.hpp"
#include "grid/process_grid.hpp"
#include "mpi_test.hpp"
#include "runs.hpp"
#include "test_support.hpp"
#include "train/evaluate.hpp"

namespace fourfold {
namespace {

struct Case {
  DenseShape grid;
  int micro_batches = 1;
  std::string variant;  // an override beside the grid
};

std::string name(const Case& c) {
  return "data " + std::to_string(c.grid.data) + " depth " + std::to_string(c.grid.depth) + " row " +
         std::to_string(c.grid.row) + " col " + std::to_string(c.grid.col) + ", " + std::to_string(c.micro_batches) +
         " micro-batches " + c.variant;
}

std::vector<std::string> overrides(const Case& c) {
  std::vector<std::string> list{
      "parallel.dense.data=" + std::to_string(c.grid.data), "parallel.dense.depth=" + std::to_string(c.grid.depth),
      "parallel.dense.row=" + std::to_string(c.grid.row), "parallel.dense.col=" + std::to_string(c.grid.col),
      "batch.micro_batches=" + std::to_string(c.micro_batches)};
  if (!c.variant.empty()) list.push_back(c.variant);
  return list;
}

// Grids of this many ranks, with accumulation 1 and 2 where the batch divides.
std::vector<Case> cases(int ranks, int global) {
  std::vector<Case> all;
  for (const DenseShape& grid : dense_factorisations(ranks)) {
    for (const int micro_batches : {1, 2}) {
      if (global % (grid.coordinates() * micro_batches) == 0) all.push_back({grid, micro_batches, ""});
    }
  }
  return all;
}

std::string file_text(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

template <class Compare>
void compare(const std::string& yaml, int steps, const std::vector<Case>& chosen, Compare compare_steps) {
  const Communicator& world = test::launch().world();
  const Communicator alone(world, {world.rank()}, "alone");
  const auto reference = test::run_steps(test::deck_of(yaml, overrides({}), 1), alone, steps);
  // By messages, or where the ranks read each other's memory: in turn, both of each case under FOURFOLD_FULL.
  const std::size_t ways = test::full() ? 2 : 1;
  for (std::size_t turn = 0; turn < ways * chosen.size(); ++turn) {
    const Case& c = chosen[turn / ways];
    std::vector<std::string> list = overrides(c);
    list.push_back(turn % 2 == 0 ? "comm.shared_memory=on" : "comm.shared_memory=off");
    SCOPED_TRACE(name(c) + ", " + list.back());
    const int ranks = static_cast<int>(c.grid.size());
    test::on_ranks(ranks, [&](const Communicator& group) {
      test::Shards shards;
      const auto records = test::run_steps(test::deck_of(yaml, list, ranks), group, steps, &shards);
      ASSERT_EQ(records.size(), reference.size());
      for (std::size_t i = 0; i < records.size(); ++i) {
        SCOPED_TRACE("step " + std::to_string(i + 1));
        test::StepRecord expected = reference[i];
        expected.gradients = test::held_part(reference[i].gradients, shards);
        expected.weights = test::held_part(reference[i].weights, shards);
        compare_steps(expected, records[i], reference[i]);
        if (testing::Test::HasFailure()) return;  // one grid's first step says enough
      }
    });
  }
}

void expect_bitwise(const test::StepRecord& a, const test::StepRecord& b, const test::StepRecord&) {
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_EQ(a.grad_norm, b.grad_norm);
  EXPECT_EQ(a.gradients, b.gradients);
  EXPECT_EQ(a.weights, b.weights);
}

double largest(const test::Tensors& tensors) {
  double most = 0;
  for (const auto& [tensor, values] : tensors) {
    for (const double value : values) most = std::max(most, std::abs(value));
  }
  return most;
}

double distance(const test::Tensors& a, const test::Tensors& b) {
  double most = 0;
  EXPECT_EQ(a.size(), b.size());
  for (const auto& [tensor, values] : a) {
    const std::vector<double>& other = b.at(tensor);
    EXPECT_EQ(values.size(), other.size()) << tensor;
    for (std::size_t i = 0; i < std::min(values.size(), other.size()); ++i) {
      const double here = std::abs(values[i] - other[i]);
      if (!(here <= most)) most = here;  // a NaN stays
    }
  }
  return most;
}

void expect_within(double tolerance, const test::StepRecord& a, const test::StepRecord& b,
                   const test::StepRecord& whole) {
  EXPECT_LE(std::abs(a.loss - b.loss), tolerance * std::abs(a.loss));
  EXPECT_LE(std::abs(a.grad_norm - b.grad_norm), tolerance * a.grad_norm);
  EXPECT_LE(distance(a.gradients, b.gradients), tolerance * largest(whole.gradients));
}

void expect_close(const test::StepRecord& a, const test::StepRecord& b, const test::StepRecord& whole) {
  expect_within(1e-11, a, b, whole);
  EXPECT_LE(distance(a.weights, b.weights), 1e-11 * largest(whole.weights));
}

// In fp32, and after one step: loss, norm and gradients, not weights.
void expect_close_in_fp32(const test::StepRecord& a, const test::StepRecord& b, const test::StepRecord& whole) {
  expect_within(1e-5, a, b, whole);
}

int ranks() {
  return test::launch().world().size();
}

TEST(Grids, DyadicMlpBitForBit) {
  compare(test::dyadic_mlp(), 12, test::sample(cases(ranks(), 48), 20), expect_bitwise);
}
TEST(Grids, DyadicEmbeddingTiedBitForBit) {
  compare(test::dyadic_embedding(true), 12, test::sample(cases(ranks(), 48), 20), expect_bitwise);
}
TEST(Grids, DyadicEmbeddingUntiedBitForBit) {
  compare(test::dyadic_embedding(false), 12, test::sample(cases(ranks(), 48), 20), expect_bitwise);
}

std::string t0() {
  return file_text(FOURFOLD_SOURCE_DIR "/inputs/t0.yaml");
}

// T0 on every grid that its 8 heads and 2 KV heads allow.
std::vector<Case> t0_cases() {
  std::vector<Case> all;
  for (const Case& c : cases(ranks(), 16)) {
    if (8 % c.grid.row == 0) all.push_back(c);
  }
  return all;
}

int t0_steps() {
  if (!test::full()) return 3;
  return ranks() == 8 ? 50 : 10;
}

std::string t0_fp64() {
  std::string text = t0();
  const std::string fp32 = "compute: fp32";
  return text.replace(text.find(fp32), fp32.size(), "compute: fp64");
}

TEST(Grids, TransformerTo1e11) {
  compare(t0_fp64(), t0_steps(), test::sample(t0_cases(), 6), expect_close);
}

TEST(Grids, TransformerInFp32) {
  compare(t0(), 1, test::sample(t0_cases(), 6), expect_close_in_fp32);
}

std::vector<Case> with(const std::vector<Case>& all, const std::string& variant, int DenseShape::*axis) {
  std::vector<Case> chosen;
  for (Case c : all) {
    if (c.grid.*axis == 1) continue;
    c.variant = variant;
    chosen.push_back(c);
  }
  return chosen;
}

TEST(Grids, SequenceShard) {
  compare(t0_fp64(), t0_steps(), test::sample(with(t0_cases(), "parallel.sequence_shard=true", &DenseShape::row), 5),
          expect_close);
}
TEST(Grids, AttentionOverCol) {
  compare(t0_fp64(), t0_steps(), test::sample(with(t0_cases(), "attention.split=col", &DenseShape::col), 5),
          expect_close);
}
TEST(Grids, DepthSplitsSequences) {
  compare(t0_fp64(), t0_steps(),
          test::sample(with(t0_cases(), "parallel.depth_splits=sequence", &DenseShape::depth), 5), expect_close);
}

// Everything at once, with learned positions, layer norm, dropout and sizes that do not divide. Biases go with
// momentum: a key bias has a zero gradient, and AdamW would divide its rounding noise by eps.
std::string odd_sizes(const std::string& bias, const std::string& optimizer) {
  return R"(
run: {name: odd, steps: 4, seed: 9}
model: {kind: transformer, layers: 2, hidden: 13, heads: 8, kv_heads: 2, head_dim: 3, vocab: 29, sequence: 11,
        positions: learned, norm: layer, ffn: {kind: gelu, hidden: 17}, bias: )" +
         bias + R"(, tie_embeddings: true, dropout: 0.1,
        init: {std: 0.2}}
data: {kind: synthetic, synthetic: dyadic, samples: 100}
batch: {global: 16}
optimizer: {)" +
         optimizer + R"(, weight_decay: 0.1, clip: 1.0}
precision: {compute: fp64}
parallel: {sequence_shard: true, depth_splits: sequence}
attention: {split: col}
)";
}

TEST(Grids, AllTogetherOnOddSizes) {
  compare(odd_sizes("all", "kind: momentum, lr: 1.0e-1"), 4, test::sample(t0_cases(), 10), expect_close);
  compare(odd_sizes("none", "kind: adamw, lr: 1.0e-2"), 4, test::sample(t0_cases(), 10), expect_close);
}

// Evaluation counts every sample once, however many there are and whatever part of the last batch is left: 997 is
// prime.
EvalReport evaluation(const Deck& deck, const Communicator& group) {
  const GridComms comms = test::grid_comms(deck, group);
  const Loader loader(deck);
  MemoryLedger memory;
  Pool pool(memory);
  const PipelinePlan plan = plan_pipeline(deck);
  Model<double> model(deck, comms, pool, plan.part_of(comms.here().stage));
  return *evaluate(model, plan, loader, comms, pool, {});
}

TEST(Grids, EvaluationOfAnyNumberOfSamples) {
  const Communicator alone(test::launch().world(), {test::launch().world().rank()}, "alone");
  for (const std::int64_t samples : test::sample(std::vector<std::int64_t>{997, 1000}, 1)) {
    const std::vector<std::string> more{"data.valid_samples=1000", "eval.samples=" + std::to_string(samples)};
    const auto deck_for = [&](const Case& c, int count) {
      std::vector<std::string> list = overrides(c);
      list.insert(list.end(), more.begin(), more.end());
      return test::deck_of(odd_sizes("none", "kind: sgd, lr: 1.0e-2"), list, count);
    };
    const EvalReport expected = evaluation(deck_for({}, 1), alone);
    EXPECT_EQ(expected.samples, samples);
    EXPECT_EQ(expected.targets, samples * 11);
    for (const Case& c : test::sample(t0_cases(), 2)) {
      SCOPED_TRACE(name(c));
      test::on_ranks(ranks(), [&](const Communicator& group) {
        const EvalReport report = evaluation(deck_for(c, ranks()), group);
        EXPECT_EQ(report.samples, samples);
        EXPECT_EQ(report.targets, samples * 11);
        EXPECT_NEAR(report.loss, expected.loss, 1e-12 * expected.loss);
      });
      if (agree_any(test::launch().world(), testing::Test::HasFailure())) return;
    }
  }
}

// Overlap off: the same operations, waited for at once; no bit changes.
TEST(Grids, OverlapChangesNoBit) {
  if (ranks() != 8) GTEST_SKIP() << "NOT TESTED in this launch: the launch of 8 ranks runs it";
  const Communicator& world = test::launch().world();
  for (const DenseShape& grid : {DenseShape{1, 2, 2, 2}, DenseShape{2, 4, 1, 1}, DenseShape{1, 1, 2, 4}}) {
    std::vector<std::vector<test::StepRecord>> runs;
    for (const char* overlap : {"parallel.overlap=true", "parallel.overlap=false"}) {
      std::vector<std::string> list = overrides({grid, 1, overlap});
      list.push_back("numerics.deterministic=true");
      runs.push_back(test::run_steps(test::deck_of(t0_fp64(), list, 8), world, 3));
    }
    for (std::size_t i = 0; i < runs[0].size(); ++i) expect_bitwise(runs[0][i], runs[1][i], runs[0][i]);
  }
}

}  // namespace
}  // namespace fourfold
