// Generation against serial passes over the whole text that keep nothing: the same tokens on every grid and pipeline,
// for any batch of prompts.
#include "infer/generate.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "../train/runs.hpp"
#include "comm/launch.hpp"
#include "mpi_test.hpp"
#include "test_support.hpp"
#include "train/pipeline.hpp"

namespace fourfold {
namespace {

using Overrides = std::vector<std::string>;
constexpr std::int32_t kEnd = 5;

const Communicator& world() {
  return test::launch().world();
}

struct TestModel {
  Deck deck;
  GridComms comms;
  MemoryLedger ledger;
  Pool pool{ledger};
  Model<double> model;
  TestModel(const Overrides& overrides, const Communicator& ranks)
      : deck(test::deck_of(test::small_transformer(), overrides, ranks.size())),
        comms(test::grid_comms(deck, ranks)),
        model(deck, comms, pool, plan_pipeline(deck).part_of(comms.here().stage)) {}
};

// Unequal lengths: one token, the whole window, more than it.
const std::vector<Ids> kPrompts = {{3, 1, 4, 1, 5},
                                   {9},
                                   {2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2},
                                   {30, 0},
                                   {1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20},
                                   {7, 7, 7},
                                   {11, 22, 11, 22, 11, 22, 11}};

bool goes_on(std::size_t, std::int32_t token) {
  return token != kEnd;
}

std::vector<Ids> generate(TestModel& setup, const std::vector<Ids>& prompts, const GenerateOptions& options) {
  return generate_tokens(setup.model, setup.comms, setup.pool, prompts, options, goes_on);
}

// The whole context through the model for every token; it starts again from the window's later half when that is full.
std::vector<Ids> by_whole_passes(TestModel& setup, const std::vector<Ids>& prompts, const GenerateOptions& options) {
  const auto window = static_cast<std::size_t>(setup.deck.model.sequence);
  std::vector<Ids> all;
  for (std::size_t prompt = 0; prompt < prompts.size(); ++prompt) {
    Ids context = prompts[prompt], made;
    while (static_cast<std::int64_t>(made.size()) < options.tokens && (made.empty() || made.back() != kEnd)) {
      if (context.size() > window)
        context.erase(context.begin(), context.end() - static_cast<std::ptrdiff_t>(window / 2));
      MicroBatch<double> batch;
      batch.sequences = 1;
      batch.tokens = static_cast<Index>(context.size());
      batch.ids = Tensor<std::int32_t>(setup.pool, MemoryTag::buffers, batch.tokens, 1);
      std::copy(context.begin(), context.end(), batch.ids.data());
      Pass<double> pass;
      pass.batch = &batch;
      const Tensor<double> logits = setup.model.extend(pass, {}, {batch.tokens - 1});
      const std::vector<double> values(logits.data(), logits.data() + logits.size());
      made.push_back(sample_token(values, options.sampling, prompt, static_cast<std::int64_t>(made.size())));
      context.push_back(made.back());
    }
    all.push_back(std::move(made));
  }
  return all;
}

GenerateOptions drawn(std::int64_t tokens) {
  GenerateOptions options;
  options.tokens = tokens;
  options.sampling.temperature = 0.9;
  options.sampling.top_k = 12;
  options.sampling.top_p = 0.95;
  options.sampling.seed = 17;
  return options;
}

TEST(Generate, KeptKeysAndValuesChangeNothing) {
  GenerateOptions greedy;
  greedy.tokens = 40;  // past the window, twice
  greedy.sampling.temperature = 0;
  const Communicator alone(world(), {world().rank()}, "alone");
  for (const std::string positions : {"rope", "learned", "none"}) {
    TestModel setup({"model.positions=" + positions, "model.sequence=16"}, alone);
    const std::vector<Ids> made = generate(setup, kPrompts, greedy);
    EXPECT_EQ(made, by_whole_passes(setup, kPrompts, greedy)) << positions;
    EXPECT_NE(std::count(made[0].begin(), made[0].end(), made[0][0]), std::ssize(made[0]))
        << "a text that says nothing";
  }
}

struct Case {
  int ranks;
  Overrides grid;
};

Overrides dense(int data, int depth, int row, int col, const Overrides& more = {}) {
  Overrides list{"parallel.dense={data: " + std::to_string(data) + ", depth: " + std::to_string(depth) +
                 ", row: " + std::to_string(row) + ", col: " + std::to_string(col) + "}"};
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

std::vector<Case> cases() {
  const std::string shard = "parallel.sequence_shard=true", split = "attention.split=col";
  const std::string two = "parallel.stages=2", four = "parallel.stages=4", by_token = "parallel.depth_splits=sequence";
  const std::string moe = "model.moe={experts: 4, top_k: 2}", folded = "parallel.moe={expert: 2}";
  const std::string tied = "model.tie_embeddings=true", learned = "model.positions=learned";
  return {
      {1, dense(1, 1, 1, 1)},
      {3, dense(3, 1, 1, 1, {learned})},
      {3, dense(1, 3, 1, 1)},
      {4, dense(1, 1, 4, 1)},
      {4, dense(1, 1, 2, 2, {shard, tied})},
      {2, dense(1, 1, 1, 2, {split})},
      {4, dense(1, 2, 1, 2, {by_token, split})},
      {8, dense(2, 2, 2, 1, {shard, learned})},
      {2, dense(1, 1, 1, 1, {two})},
      {4, dense(1, 1, 1, 1, {four, tied})},
      {8, dense(2, 1, 1, 1, {four})},
      {8, dense(1, 2, 1, 2, {two, learned})},
      {8, dense(1, 2, 2, 1, {two, shard, by_token})},
      {8, dense(1, 1, 2, 2, {two, shard, split, tied})},
      {4, dense(2, 1, 2, 1, {moe, folded, shard})},
      {4, dense(1, 1, 1, 2, {two, moe, folded, learned})},
      {5,
       {two, "parallel.stage_grids=[{data: 1, depth: 1, row: 2, col: 1}, {data: 3, depth: 1, row: 1, col: 1}]", tied}},
      {7,
       {"parallel.stages=3",
        "parallel.stage_grids=[{data: 1, depth: 2, row: 1, col: 1}, {data: 1, depth: 1, row: 1, col: 2}, {data: 3, "
        "depth: 1, row: 1, col: 1}]",
        learned}},
  };
}

std::string text_of(const Case& tested) {
  std::string text = std::to_string(tested.ranks) + " ranks";
  for (const std::string& word : tested.grid) text += " " + word;
  return text;
}

void compare(const Case& tested, const std::vector<std::int64_t>& all_at_once) {
  if (tested.ranks > world().size()) return;
  test::on_ranks(tested.ranks, [&](const Communicator& ranks) {
    Overrides alone_overrides{"model.sequence=16"}, overrides = tested.grid;
    overrides.push_back("model.sequence=16");
    for (const std::string& word : tested.grid) {
      if (word.starts_with("model.")) alone_overrides.push_back(word);
    }
    const Communicator alone(ranks, {ranks.rank()}, "alone");
    TestModel one(alone_overrides, alone), all(overrides, ranks);
    GenerateOptions options = drawn(13);
    const std::vector<Ids> expected = by_whole_passes(one, kPrompts, options);
    for (const std::int64_t at_once : all_at_once) {
      options.at_once = at_once;
      EXPECT_EQ(generate(all, kPrompts, options), expected) << text_of(tested) << ", " << at_once << " at once";
    }
    const std::vector<Ids> first(kPrompts.begin(), kPrompts.begin() + 1);
    EXPECT_EQ(generate(all, first, options)[0], expected[0]) << text_of(tested) << ", one prompt";
  });
}

TEST(Generate, SameTokensOnEveryGrid) {
  const std::vector<std::int64_t> all_at_once =
      test::full() ? std::vector<std::int64_t>{1, 2, 3, 100} : std::vector<std::int64_t>{3};
  for (const Case& tested : test::sample(cases(), 6)) compare(tested, all_at_once);
}

// Tokens of several sequences, from several ranks, at one expert: none has another's number.
TEST(Generate, SameTokensWithExpertsThatSeveralRanksSendTo) {
  const std::string moe = "model.moe={experts: 6, top_k: 2, shared_hidden: 16, shared_gate: true}";
  const std::string all_gather = "model.moe.dispatcher=allgather";
  compare({8, dense(2, 1, 2, 2, {moe, "parallel.moe={expert: 4}"})}, {3, 100});
  compare({8, dense(2, 2, 1, 1, {moe, "parallel.stages=2", "parallel.moe={expert: 2, col: 2}", all_gather})}, {3, 100});
}

TEST(Generate, EndsWhenToldAndMakesNothingOfNothing) {
  const Communicator alone(world(), {world().rank()}, "alone");
  TestModel setup({}, alone);
  std::vector<int> seen(3);
  const std::vector<Ids> made =
      generate_tokens(setup.model, setup.comms, setup.pool, {{3}, {4}, {5}}, drawn(50),
                      [&](std::size_t prompt, std::int32_t) { return ++seen[prompt] < 7 - static_cast<int>(prompt); });
  for (std::size_t prompt = 0; prompt < made.size(); ++prompt) EXPECT_EQ(made[prompt].size(), 7 - prompt);
  EXPECT_TRUE(generate(setup, {}, drawn(5)).empty());
  EXPECT_EQ(generate(setup, {{1}}, drawn(0)), std::vector<Ids>{{}});
}

}  // namespace
}  // namespace fourfold
