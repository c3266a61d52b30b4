// The faults that others had with experts (P31, P33 to P40) on as many ranks as the launch has: 1, 2 and 4. Each
// compares with a run of one rank.
#include <gtest/gtest.h>

#include <cmath>

#include "comm/agree.hpp"
#include "deck/reader.hpp"
#include "moe_runs.hpp"

namespace fourfold {
namespace {

using test::Folding;
using test::small_t0_moe;
using test::t0_moe;
using test::Texts;
using test::world;

// Both; an entry of b takes the place of one with the same key.
Texts joined(Texts a, const Texts& b) {
  for (const std::string& entry : b) {
    const std::string key = entry.substr(0, entry.find('=') + 1);
    std::erase_if(a, [&](const std::string& old) { return old.starts_with(key); });
    a.push_back(entry);
  }
  return a;
}

// One rank's run without parallel keys.
const Communicator& alone() {
  static const Communicator one(world(), {world().rank()}, "alone");
  return one;
}

// The experts over all ranks; and rows and columns of both grids.
std::vector<Texts> grids() {
  const int n = world().size();
  std::vector<Folding> some = {{{n, 1, 1, 1}, {1, n, 1, 1}}};
  if (n > 1) {
    some.push_back({{1, 1, n, 1}, {n / 2, 1, 1, 2}});
    some.push_back({{n / 2, 1, 1, 2}, {1, n / 2, 2, 1}});
  }
  std::vector<Texts> all;
  for (const Folding& f : some) all.push_back(test::overrides(f));
  return all;
}

bool failed() {
  return agree_any(world(), testing::Test::HasFailure());
}

std::vector<StepReport> reports_on(const Communicator& ranks, const Texts& list, int steps) {
  std::vector<StepReport> reports;
  test::Training<> run(test::deck_of(t0_moe(), joined(small_t0_moe(), list), ranks.size()), ranks);
  for (int step = 0; step < steps; ++step) reports.push_back(run.trainer.step());
  return reports;
}

// `model`: what both runs have; `grid`: what the run of all ranks has beside it. Three steps to 1e-11.
void expect_serial(const Texts& model, const Texts& grid) {
  std::string trace;
  for (const std::string& entry : joined(model, grid)) trace += entry + " ";
  SCOPED_TRACE(trace);
  const Texts base = joined(small_t0_moe(), model);
  const auto one = test::run_steps(test::deck_of(t0_moe(), base, 1), alone(), 3);
  test::Shards shards;
  const auto all = test::run_steps(test::deck_of(t0_moe(), joined(base, grid), world().size()), world(), 3, &shards);
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(all[i].loss, one[i].loss, 1e-11 * std::abs(one[i].loss));
    EXPECT_NEAR(all[i].grad_norm, one[i].grad_norm, 1e-11 * one[i].grad_norm);
    test::expect_part(one[i].gradients, all[i].gradients, shards, 1e-11);
    test::expect_part(one[i].weights, all[i].weights, shards, 1e-11);
  }
}

TEST(MoeRanks, P31RecomputeFollowsTheFirstForward) {
  for (const Texts& grid : grids()) {
    const Texts list = joined(joined(small_t0_moe(), {"model.moe.jitter=0.3"}), grid);
    const int n = world().size();
    const auto kept = test::run_steps(test::deck_of(t0_moe(), list, n), world(), 3);
    const auto again = test::run_steps(
        test::deck_of(t0_moe(), joined(list, {"parallel.activations.default=recompute"}), n), world(), 3);
    for (std::size_t i = 0; i < kept.size(); ++i) {
      EXPECT_EQ(again[i].loss, kept[i].loss);
      EXPECT_EQ(again[i].gradients, kept[i].gradients);
      EXPECT_EQ(again[i].weights, kept[i].weights);
    }
    if (failed()) return;
  }
}

// Values and gradients of both losses, for every scope and accumulation that the scope allows.
TEST(MoeRanks, P33StrengthDoesNotDependOnTheGrid) {
  for (const char* scope : {"sequence", "micro_batch", "global_batch"}) {
    const Texts model = {"model.moe.balance={aux: 0.5, z: 0.1, scope: " + std::string(scope) + "}"};
    const auto one = reports_on(alone(), model, 1);
    for (const Texts& grid : grids()) {
      SCOPED_TRACE(std::string(scope) + " " + grid[0]);
      test::expect_same_report(one[0].moe, reports_on(world(), joined(model, grid), 1)[0].moe, 1e-12);
      expect_serial(model, grid);
      if (std::string(scope) == "sequence") expect_serial(model, joined(grid, {"batch.micro_batches=2"}));
      if (failed()) return;
    }
  }
}

TEST(MoeRanks, P34LossesAreReportedOnce) {
  const auto expected = reports_on(alone(), {}, 2);
  for (const char* micro_batches : {"1", "2", "4"}) {
    for (const char* keeping : {"keep", "recompute"}) {
      const Texts how = {std::string("batch.micro_batches=") + micro_batches,
                         std::string("parallel.activations.default=") + keeping};
      SCOPED_TRACE(how[0] + " " + how[1]);
      const auto reports = reports_on(world(), joined(how, grids().front()), 2);
      for (std::size_t i = 0; i < reports.size(); ++i) {
        test::expect_same_report(expected[i].moe, reports[i].moe, 1e-11);
        EXPECT_NEAR(aux_loss(reports[i].moe), aux_loss(expected[i].moe), 1e-11);
      }
      if (failed()) return;
    }
  }
}

// Three of four expert ranks idle; one token for all ranks; five sequences left for the last batch.
TEST(MoeRanks, P35NothingToDo) {
  const Texts one_expert = {"model.moe.forced={routing: zipf, exponent: 300}", "model.moe.top_k=1"};
  for (const Texts& grid : grids()) {
    expect_serial(one_expert, grid);
    const auto loss = [&](const Texts& list, const Communicator& ranks) {
      const Texts all = joined(joined(small_t0_moe(), {"data.valid_samples=5"}), list);
      return test::first_evaluation(test::deck_of(t0_moe(), all, ranks.size()), ranks);
    };
    const double expected = loss({}, alone());
    EXPECT_NEAR(loss(grid, world()), expected, 1e-12 * expected);
    if (failed()) return;
  }
  const int n = world().size();
  for (const Folding& f : {Folding{{1, 1, n, 1}, {1, n, 1, 1}}, Folding{{1, 1, 1, n}, {n, 1, 1, 1}}}) {
    expect_serial({"batch.global=1", "model.sequence=1"}, test::overrides(f));
    if (failed()) return;
  }
}

TEST(MoeRanks, P36BiasesAreTheSameEverywhere) {
  const Texts model = {"model.moe.score=sigmoid", "model.moe.balance={bias_rate: 0.01}"};
  const auto biases = [&](const Texts& list, const Communicator& ranks) {
    test::Training<> run(test::deck_of(t0_moe(), joined(joined(small_t0_moe(), model), list), ranks.size()), ranks);
    for (int step = 0; step < 3; ++step) run.trainer.step();
    return test::values_of(run.shards()).at("/params/layers.1.moe.router.selection_bias");
  };
  const std::vector<double> expected = biases({}, alone());
  EXPECT_GT(*std::max_element(expected.begin(), expected.end()), 0.005);
  for (const Texts& grid : grids()) {
    for (const char* keeping : {"keep", "recompute"})
      EXPECT_EQ(biases(joined(grid, {std::string("parallel.activations.default=") + keeping}), world()), expected);
    if (failed()) return;
  }
}

// All tokens ask for experts 0 and 1 of 4: half of the pairs is dropped at a factor of 1, and the same half everywhere.
TEST(MoeRanks, P37WhatIsDroppedIsSeen) {
  for (const char* priority : {"position", "probability"}) {
    const Texts model = {"model.moe.experts=4", "model.moe.forced={routing: zipf, exponent: 300}",
                         "model.moe.capacity={factor: 1.0, priority: " + std::string(priority) + "}"};
    for (const Texts& grid : grids()) {
      for (const MoeLayerReport& layer : reports_on(world(), joined(model, grid), 1)[0].moe) {
        EXPECT_EQ(layer.dropped, 0.5);
        EXPECT_EQ(layer.max_load, 2);
        EXPECT_GT(layer.entropy, 0);
        EXPECT_LE(layer.entropy, std::log(4.0) + 1e-12);
      }
      expect_serial(model, grid);
      if (failed()) return;
    }
  }
}

TEST(MoeRanks, P38ExpertsThatDoNotDivide) {
  const int n = world().size();
  const std::string over = "parallel.moe.expert=" + std::to_string(n);
  const std::string experts = std::to_string(n + (n + 1) / 2);  // 6 on 4 ranks
  expect_serial({"model.moe.experts=" + experts}, {over});
  const Texts few = joined(small_t0_moe(), {"model.moe.experts=2", "model.moe.top_k=1", over});
  const ReadResult read = read_deck(t0_moe(), "test.yaml", few, n);
  if (n <= 2) {
    EXPECT_TRUE(read.errors.empty());
  } else {
    ASSERT_EQ(read.errors.size(), 1u);
    EXPECT_EQ(read.errors[0].path, "parallel.moe.expert");
  }
}

// Experts in the last layer alone: with stages, in the last one.
TEST(MoeRanks, P39StagesWithoutExperts) {
  const Texts model = {"model.moe.every=2"};
  const auto one = reports_on(alone(), model, 1);
  ASSERT_EQ(one[0].moe.size(), 1u);
  for (const char* schedule : {"1f1b", "gpipe"}) {
    Texts staged = {"batch.micro_batches=2", std::string("parallel.schedule=") + schedule};
    if (world().size() > 1) staged.push_back("parallel.stages=2");
    test::expect_same_report(one[0].moe, reports_on(world(), joined(model, staged), 1)[0].moe, 1e-12);
    expect_serial(model, staged);
    if (failed()) return;
  }
}

// The gate's gradient as on one rank, and as ten central differences of the whole loss.
TEST(MoeRanks, P40GateGradient) {
  for (const Texts& grid : grids()) {
    expect_serial({}, grid);
    const Texts still = {"optimizer.lr=0", "optimizer.weight_decay=0", "optimizer.clip=0", "run.steps=1000"};
    const Deck deck = test::deck_of(t0_moe(), joined(joined(small_t0_moe(), still), grid), world().size());
    test::expect_gate_gradient(deck, world(), "layers.0.moe.router.weight", 1e-6);
    if (failed()) return;
  }
}

}  // namespace
}  // namespace fourfold
