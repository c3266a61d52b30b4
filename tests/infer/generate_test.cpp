// Generation with kept keys and values against whole passes, and on any number of ranks.
#include "infer/generate.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "../train/runs.hpp"
#include "comm/launch.hpp"
#include "mpi_test.hpp"

namespace fourfold {
namespace {

const Communicator& world() {
  return test::launch().world();
}

struct TestModel {
  Deck deck;
  GridComms comms;
  MemoryLedger ledger;
  Pool pool{ledger};
  Model<double> model;
  TestModel(const std::vector<std::string>& overrides, const Communicator& ranks)
      : deck(test::deck_of(test::small_transformer(), overrides, ranks.size())),
        comms(test::grid_comms(deck, ranks)),
        model(deck, comms, pool) {}
};

const std::vector<std::int32_t> kPrompt = {3, 1, 4, 1, 5};

std::vector<std::int32_t> generate(TestModel& setup, const SamplingOptions& options, std::int64_t tokens) {
  return generate_tokens(setup.model, setup.comms, setup.pool, kPrompt, tokens, options,
                         [](std::int32_t) { return true; });
}

// The whole text through the model for every token; the window starts again from its later half when it is full.
std::vector<std::int32_t> greedy_by_whole_passes(TestModel& setup, std::int64_t tokens) {
  const auto window = static_cast<std::size_t>(setup.deck.model.sequence);
  std::vector<std::int32_t> context = kPrompt, made;
  while (static_cast<std::int64_t>(made.size()) < tokens) {
    if (context.size() > window)
      context.erase(context.begin(), context.end() - static_cast<std::ptrdiff_t>(window / 2));
    MicroBatch<double> batch;
    batch.sequences = 1;
    batch.tokens = static_cast<Index>(context.size());
    batch.ids = Tensor<std::int32_t>(setup.pool, MemoryTag::buffers, batch.tokens, 1);
    std::copy(context.begin(), context.end(), batch.ids.data());
    Pass<double> pass;
    pass.batch = &batch;
    const Tensor<double> logits = setup.model.logits(pass, 1);
    const double* best = std::max_element(logits.data(), logits.data() + logits.size());
    made.push_back(static_cast<std::int32_t>(best - logits.data()));
    context.push_back(made.back());
  }
  return made;
}

TEST(Generate, KeptKeysAndValuesChangeNothing) {
  SamplingOptions greedy;
  greedy.temperature = 0;
  for (const std::string positions : {"rope", "learned", "none"}) {
    TestModel setup({"model.positions=" + positions, "model.sequence=16"}, world());
    const auto tokens = generate(setup, greedy, 40);  // past the window, twice
    EXPECT_EQ(tokens, greedy_by_whole_passes(setup, 40)) << positions;
    EXPECT_NE(std::count(tokens.begin(), tokens.end(), tokens[0]), 40) << "a constant text shows nothing";
  }
}

TEST(Generate, SameTokensOnAnyNumberOfRanks) {
  SamplingOptions options;
  options.temperature = 0.9;
  options.top_k = 10;
  options.seed = 17;
  TestModel all({}, world());
  const Communicator alone(world(), {world().rank()}, "alone");
  TestModel one({}, alone);
  EXPECT_EQ(generate(all, options, 50), generate(one, options, 50));
}

TEST(Generate, EndsWhenTold) {
  TestModel setup({}, world());
  int seen = 0;
  const auto made = generate_tokens(setup.model, setup.comms, setup.pool, kPrompt, 50, SamplingOptions{},
                                    [&](std::int32_t) { return ++seen < 7; });
  EXPECT_EQ(made.size(), 7u);
}

}  // namespace
}  // namespace fourfold
