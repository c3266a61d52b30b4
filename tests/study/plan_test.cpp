// Strategies as overrides, trials and their keys, parts of a study.
#include <gtest/gtest.h>

#include <set>

#include "base/error.hpp"
#include "deck/derive.hpp"
#include "study/job_scripts.hpp"
#include "study/plan.hpp"

namespace fourfold::study {
namespace {

const char* const kStudy =
    "study: {name: s, kind: strategies, ranks: [1, 2, 4, 8], seeds: [1, 2], repeats: 2, strategies: [ddp, zero1, fsdp,"
    " hsdp, megatron-1d, megatron-sp, axonn-3d, expert-parallel, gpipe, 1f1b, zero-bubble, ptd]}\n"
    "run: {steps: 4, name: x}\n"
    "model: {kind: transformer, layers: 6, hidden: 64, heads: 8, vocab: 257, sequence: 8}\n"
    "data: {kind: synthetic, samples: 96}\n"
    "batch: {global: 32}\n";

Resolve resolver(const std::string& text) {
  return [text](const std::vector<std::string>& overrides, std::int64_t ranks) {
    const ReadResult read = read_deck_of_study(text, "s.yaml", overrides, ranks, {});
    if (read.errors.empty()) return std::make_pair(std::optional<Deck>(read.deck), std::string());
    return std::make_pair(std::optional<Deck>(), read.errors.front().text());
  };
}

Plan plan_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  const StudyRead read = read_study(text, "s.yaml", overrides, strategy_names());
  EXPECT_TRUE(read.errors.empty()) << numbered_list(read.errors);
  return make_plan(read, 1, resolver(text));
}

TEST(Strategies, AreLegalAndKeepTheGlobalBatch) {
  const Plan plan = plan_of(kStudy);
  ASSERT_EQ(plan.trials.size(), 4u * 12u * 2u * 2u);
  std::set<std::string> keys;
  for (const Trial& trial : plan.trials) {
    ASSERT_TRUE(trial.deck) << trial.label() << ": " << trial.problem;
    EXPECT_EQ(deck_ranks(*trial.deck), trial.ranks) << trial.label();
    EXPECT_EQ(trial.deck->batch.global, 32) << trial.label();
    keys.insert(trial.key);
  }
  EXPECT_EQ(keys.size(), plan.trials.size());  // on one rank too, where all strategies are one layout
}

TEST(Strategies, AreWhatTheyImitate) {
  const Plan plan = plan_of(kStudy);
  const auto layout = [&](const std::string& strategy, int ranks) {
    for (const Trial& trial : plan.trials) {
      if (trial.strategy == strategy && trial.ranks == ranks) return trial.layout();
    }
    return std::string("none");
  };
  EXPECT_EQ(layout("ddp", 4), "data 4");
  EXPECT_EQ(layout("fsdp", 4), "depth 4");
  EXPECT_EQ(layout("hsdp", 8), "data 2 x depth 4");
  EXPECT_EQ(layout("megatron-1d", 8), "row 8");
  EXPECT_EQ(layout("axonn-3d", 4), "row 2 x col 2");
  EXPECT_EQ(layout("axonn-3d", 8), "depth 2 x row 2 x col 2");
  EXPECT_EQ(layout("expert-parallel", 4), "data 4 x expert 4");
  EXPECT_EQ(layout("gpipe", 4), "stages 4, gpipe");
  EXPECT_EQ(layout("zero-bubble", 2), "stages 2, zero_bubble");
  EXPECT_EQ(layout("ptd", 8), "stages 2 x data 2 x row 2, 1f1b");
  EXPECT_EQ(layout("ddp", 1), "one rank");
  for (const Trial& trial : plan.trials) {
    EXPECT_EQ(trial.deck->optimizer.shard != OptimizerDeck{}.shard, trial.strategy == "zero1") << trial.label();
    if (trial.deck->parallel.stages > 1) {
      EXPECT_GE(trial.deck->batch.micro_batches, trial.deck->parallel.stages) << trial.label();
    }
  }
}

TEST(Trials, HaveKeysOfWhatTheyAreAndNotOfWhereTheyLie) {
  const std::string text =
      "study: {ranks: [1, 2], sweep: {optimizer.lr: [1e-3, 2e-3]}}\nrun: {steps: 4, name: x}\n"
      "model: {kind: mlp, widths: [8, 8]}\ndata: {kind: synthetic, samples: 96}\nbatch: {global: 24}\n";
  const auto keys = [&](const std::vector<std::string>& overrides) {
    std::vector<std::string> list;
    for (const Trial& trial : plan_of(text, overrides).trials) list.push_back(trial.key);
    return list;
  };
  const std::vector<std::string> first = keys({});
  EXPECT_EQ(std::set<std::string>(first.begin(), first.end()).size(), 4u);
  EXPECT_EQ(keys({"run.name=other", "run.folder=elsewhere", "study.name=z"}), first);
  const std::vector<std::string> other = keys({"run.steps=5"});
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_NE(first[i], other[i]);
  // The order of the study's lists is no part of a trial; more of them leave the others as they were.
  const std::vector<std::string> more = keys({"study.ranks=[2, 1, 3]"});
  for (const std::string& key : first) EXPECT_EQ(std::count(more.begin(), more.end(), key), 1);
}

TEST(Trials, ADeckThatRefusesItsRanksIsAFailedTrialNotAFaultOfTheStudy) {
  const Plan plan = plan_of(
      "study: {ranks: [1, 3, 5]}\nrun: {steps: 4}\nmodel: {kind: mlp, widths: [8, 8]}\n"
      "data: {kind: synthetic, samples: 96}\nbatch: {global: 24}\n");
  ASSERT_EQ(plan.trials.size(), 3u);
  EXPECT_TRUE(plan.trials[1].deck);
  EXPECT_FALSE(plan.trials[2].deck);
  EXPECT_NE(plan.trials[2].problem.find("batch"), std::string::npos) << plan.trials[2].problem;
}

TEST(Trials, WeakScalingGrowsTheBatchWithTheRanks) {
  const Plan plan = plan_of(
      "study: {kind: scaling, scaling: weak, ranks: [2, 3, 4]}\nrun: {steps: 4}\n"
      "model: {kind: mlp, widths: [8, 8]}\ndata: {kind: synthetic, samples: 96}\nbatch: {global: 24}\n");
  ASSERT_EQ(plan.trials.size(), 3u);
  EXPECT_EQ(plan.trials[0].deck->batch.global, 24);
  EXPECT_EQ(plan.trials[1].deck->batch.global, 36);
  EXPECT_EQ(plan.trials[2].deck->batch.global, 48);
}

TEST(Trials, PartsTogetherAreTheStudy) {
  const Plan plan = plan_of(kStudy);
  std::size_t together = 0;
  for (const char* part : {"ranks=1", "ranks=2", "ranks=4", "ranks=8"}) together += select(plan, {part}).size();
  EXPECT_EQ(together, plan.trials.size());
  EXPECT_EQ(select(plan, {"ranks=4", "strategy=ptd", "seed=2", "repeat=1"}).size(), 1u);
  EXPECT_THROW(select(plan, {"ranks=5"}), Error);
  EXPECT_THROW(select(plan, {"colour=red"}), Error);
}

}  // namespace
}  // namespace fourfold::study
