// The faults that others had with experts: P31, P34 to P40 (P39 is in moe_test.cpp).
#include <gtest/gtest.h>

#include <cmath>

#include "comm/agree.hpp"
#include "deck/reader.hpp"
#include "moe_runs.hpp"
#include "test_support.hpp"

namespace fourfold {
namespace {

using test::expect_same_report;
using test::Folding;
using test::foldings;
using test::kDyadicMoe;
using test::kRows;
using test::odd_moe;
using test::overrides;
using test::reports_of;
using test::t0_moe;
using test::Texts;
using test::variants;
using test::world;

// --- P31, P34: forward runs again ---

TEST(Moe, P31RecomputeFollowsTheFirstForward) {
  FOURFOLD_EIGHT_RANKS();
  const std::string moe =
      "model.moe={experts: 6, top_k: 2, hidden: 10, jitter: 0.3, balance: {aux: 0.02, z: 0.001}, capacity: {factor: "
      "1.0, scope: micro_batch}}";
  const Texts base = {moe, "model.layers=3", "batch.micro_batches=3"};
  const std::vector<Texts> flags = {{"parallel.activations.default=recompute"},
                                    {"parallel.activations.sublayers=[ffn]"},
                                    {"parallel.activations.sublayers=[attention,ffn]"},
                                    {"parallel.activations.default=offload"},
                                    {"parallel.activations.offload=[1]", "parallel.activations.recompute=[2]"}};
  const std::vector<Texts> schedules = {{"parallel.stages=1"},
                                        {"parallel.stages=2", "parallel.schedule=zero_bubble"},
                                        {"parallel.stages=2", "parallel.schedule=gpipe"},
                                        {"parallel.schedule=layered"}};
  for (const Texts& schedule : test::sample(schedules, 2)) {
    const int ranks = 8 / (schedule.front() == "parallel.stages=2" ? 2 : 1);
    const Folding f = test::sample(foldings(ranks, 6, kRows), 1).front();
    Texts list = base;
    const Texts grid = overrides(f);
    list.insert(list.end(), grid.begin(), grid.end());
    list.insert(list.end(), schedule.begin(), schedule.end());
    if (!read_deck(test::small_transformer(), "test.yaml", list, 8).errors.empty()) continue;
    const auto kept = test::run_steps(test::deck_of(test::small_transformer(), list, 8), world(), 2);
    const auto kept_reports = reports_of(test::small_transformer(), list, 8, 2);
    for (const Texts& flag : test::sample(flags, 2)) {
      Texts again = list;
      again.insert(again.end(), flag.begin(), flag.end());
      SCOPED_TRACE(schedule.back() + " " + flag.front());
      const auto others = test::run_steps(test::deck_of(test::small_transformer(), again, 8), world(), 2);
      for (std::size_t i = 0; i < kept.size(); ++i) {
        EXPECT_EQ(others[i].loss, kept[i].loss);
        EXPECT_EQ(others[i].grad_norm, kept[i].grad_norm);
        EXPECT_EQ(others[i].gradients, kept[i].gradients);
        EXPECT_EQ(others[i].weights, kept[i].weights);
      }
      // P34: counted once.
      const auto reports = reports_of(test::small_transformer(), again, 8, 2);
      for (std::size_t i = 0; i < reports.size(); ++i) expect_same_report(kept_reports[i].moe, reports[i].moe, 0);
      if (agree_any(world(), testing::Test::HasFailure())) return;
    }
  }
}

TEST(Moe, P34LossesAreReportedOnce) {
  FOURFOLD_EIGHT_RANKS();
  const auto expected = reports_of(t0_moe(), {}, 1, 2);
  for (const char* micro_batches : {"1", "2", "4"}) {
    for (const char* keeping : {"keep", "recompute"}) {
      SCOPED_TRACE(std::string(micro_batches) + " " + keeping);
      const Texts list = {std::string("batch.micro_batches=") + micro_batches,
                          std::string("parallel.activations.default=") + keeping};
      for (const int ranks : {1, 4}) {
        Texts more = list;
        if (ranks > 1) more.push_back("parallel.moe.expert=2");
        const auto reports = reports_of(t0_moe(), more, ranks, 2);
        for (std::size_t i = 0; i < reports.size(); ++i) {
          expect_same_report(expected.empty() ? reports[i].moe : expected[i].moe, reports[i].moe, 1e-11);
          EXPECT_NEAR(z_loss(reports[i].moe), z_loss(expected.empty() ? reports[i].moe : expected[i].moe), 1e-9);
        }
      }
      if (agree_any(world(), testing::Test::HasFailure())) return;
    }
  }
}

// --- P35: nothing to do ---

TEST(Moe, P35AllTokensToOneExpert) {
  // Zipf with a large exponent is the first expert, always; three of four expert ranks have nothing.
  const std::string one = "model.moe={experts: 4, top_k: 1, hidden: 10, forced: {routing: zipf, exponent: 300}}";
  const std::vector<Folding> some = {{{4, 1, 2, 1}, {2, 4, 1, 1}},
                                     {{2, 2, 1, 2}, {1, 4, 2, 1}},
                                     {{8, 1, 1, 1}, {1, 4, 1, 2}},
                                     {{1, 2, 2, 2}, {4, 2, 1, 1}}};
  test::expect_like_serial(test::small_transformer(), variants(test::sample(some, 2), {one}), 3, 1e-11);

  // An expert that nobody chose has a gradient of zero, and decays as any matrix.
  FOURFOLD_EIGHT_RANKS();
  const Deck deck = test::deck_of(test::small_transformer(), variants({some[0]}, {one}).front().overrides, 8);
  test::Training<> run(deck, world());
  const auto value_of = [&](Param<double>& param) {
    return param.value.extent(0) > 0 ? Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), param.use())(0) : 0.0;
  };
  std::vector<Param<double>*> unused;
  for (Param<double>& param : run.params().params()) {
    if (param.spec.name.find(".moe.experts.2.") != std::string::npos && param.decays) unused.push_back(&param);
  }
  ASSERT_FALSE(unused.empty());
  std::vector<double> before;
  for (Param<double>* param : unused) before.push_back(value_of(*param));
  const double rate = run.trainer.step().learning_rate;
  for (std::size_t i = 0; i < unused.size(); ++i) {
    EXPECT_DOUBLE_EQ(value_of(*unused[i]), before[i] * (1 - rate * deck.optimizer.weight_decay));
  }
}

TEST(Moe, P35MoreRanksThanTokens) {
  // Two samples of one token, cut over 8 ranks; with empty parts of a micro-batch too.
  const Texts few = {kDyadicMoe, "batch.global=2"};
  const std::vector<Folding> some = {{{1, 1, 4, 2}, {2, 2, 2, 1}},
                                     {{2, 1, 2, 2}, {1, 4, 1, 2}},
                                     {{1, 2, 2, 2}, {8, 1, 1, 1}},
                                     {{1, 1, 1, 8}, {1, 2, 2, 2}}};
  test::expect_like_serial(test::dyadic_stack(), variants(test::sample(some, 3), few), 4, 0);
  const Texts unequal = {kDyadicMoe, "batch.global=6", "parallel.stage_grids=[{data: 5}, {row: 3}]"};
  test::expect_like_serial(test::dyadic_stack(), {{unequal, 8}}, 4, 0);
}

TEST(Moe, P35LastBatchOfFive) {
  FOURFOLD_EIGHT_RANKS();
  const auto loss = [&](const Texts& list, const Communicator& ranks) {
    return test::first_evaluation(test::deck_of(odd_moe(), list, ranks.size()), ranks);
  };
  const Communicator alone(world(), {world().rank()}, "alone");
  const double expected = loss({}, alone);
  EXPECT_NEAR(loss(overrides({{4, 1, 2, 1}, {1, 4, 2, 1}}), world()), expected, 1e-12 * expected);
}

// --- P36 ---

// The biases after some steps: of the counts of whole steps, whatever the grid, the micro-batches and what runs again.
TEST(Moe, P36BiasesFollowTheStepsCounts) {
  FOURFOLD_EIGHT_RANKS();
  const std::string name = "/params/layers.1.moe.router.selection_bias";
  const auto biases = [&](const Texts& list, const Communicator& ranks) {
    test::Training<> run(test::deck_of(odd_moe(), list, ranks.size()), ranks);
    for (int step = 0; step < 4; ++step) run.trainer.step();
    return test::values_of(run.shards()).at(name);
  };
  const Communicator alone(world(), {world().rank()}, "alone");
  const std::vector<double> expected = biases({}, alone);
  double sum = 0, largest = 0;
  for (const double bias : expected) {
    sum += bias;
    largest = std::max(largest, std::abs(bias));
  }
  EXPECT_NEAR(sum, 0, 1e-15);  // centred again
  EXPECT_GT(largest, 0.004);
  for (const Texts& how : {Texts{"batch.micro_batches=2"},
                           {"parallel.activations.default=recompute"},
                           {"parallel.stages=2", "parallel.schedule=zero_bubble", "batch.micro_batches=2"}}) {
    Texts list = how;
    const Texts grid =
        overrides(how.size() > 1 ? Folding{{1, 1, 2, 2}, {2, 2, 1, 1}} : Folding{{2, 1, 2, 2}, {1, 4, 2, 1}});
    list.insert(list.end(), grid.begin(), grid.end());
    const std::vector<double> here = biases(list, world());
    // Stages without the layer hold nothing of it.
    if (!here.empty()) {
      EXPECT_EQ(here, expected) << how.front();
    }
  }
}

// --- P38 ---

TEST(Moe, P38ExpertsByQuotientAndRemainder) {
  const std::string moe = "model.moe={experts: 6, top_k: 2, hidden: 10}";
  test::expect_like_serial(test::small_transformer(),
                           variants({{{4, 1, 1, 2}, {2, 4, 1, 1}}, {{2, 2, 2, 1}, {1, 4, 1, 2}}}, {moe}), 2, 1e-11);
  const ReadResult refused = read_deck(test::small_transformer(), "test.yaml",
                                       {"model.moe={experts: 4, top_k: 2}", "parallel.moe.expert=8"}, 8);
  ASSERT_EQ(refused.errors.size(), 1u);
  EXPECT_EQ(refused.errors[0].path, "parallel.moe.expert");
}

// --- P40 ---

TEST(Moe, P40GateGradientIsTheLossesOwn) {
  FOURFOLD_EIGHT_RANKS();
  const auto check = [&](const Texts& more, const Communicator& ranks) {
    Texts list = {"model.moe.balance.bias_rate=0", "optimizer.lr=0", "optimizer.weight_decay=0", "optimizer.clip=0",
                  "run.steps=1000"};
    list.insert(list.end(), more.begin(), more.end());
    const Deck deck = test::deck_of(odd_moe(), list, ranks.size());
    test::expect_gate_gradient(deck, ranks, "layers.1.moe.router.weight", 1e-7);
  };
  const Communicator alone(world(), {world().rank()}, "alone");
  check({}, alone);
  check(overrides({{2, 1, 2, 2}, {1, 4, 1, 2}}), world());
}

TEST(Moe, P40GateGradientOnExpertGrids) {
  test::expect_like_serial(
      t0_moe(), variants({{{8, 1, 1, 1}, {8, 1, 1, 1}}, {{8, 1, 1, 1}, {4, 2, 1, 1}}, {{4, 1, 2, 1}, {2, 4, 1, 1}}}), 2,
      1e-11);
}

}  // namespace
}  // namespace fourfold
