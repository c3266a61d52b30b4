// Mixtures of experts on the folded grid: every MoE grid with every dense grid of 8 ranks trains as one rank does, with
// every option, and in stages of a pipeline. FOURFOLD_FULL=1 runs the whole lists.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "deck/reader.hpp"
#include "moe_runs.hpp"
#include "schedule/builders.hpp"
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
using test::Variant;
using test::variants;
using test::world;

// In an order of the seed.
std::vector<Folding> shuffled(std::vector<Folding> all) {
  std::mt19937_64 engine(test::seed());
  std::shuffle(all.begin(), all.end(), engine);
  return all;
}

const char* const kMoe = "model.moe={experts: 6, top_k: 2, hidden: 10, balance: {aux: 0.02, z: 0.001}}";

TEST(Moe, FoldingsTo1e11) {
  test::expect_like_serial(t0_moe(), variants(test::sample(foldings(8, 8), 4)), test::full() ? 20 : 2, 1e-11);
}

TEST(Moe, OddSizesTo1e11) {
  test::expect_like_serial(odd_moe(), variants(test::sample(foldings(8, 6), 8)), 3, 1e-11);
}

TEST(Moe, DyadicStackBitForBit) {
  test::expect_like_serial(test::dyadic_stack(), variants(test::sample(foldings(8, 5), 10), {kDyadicMoe}), 4, 0);
}

TEST(Moe, DyadicStackMoves) {
  if (world().rank() != 0) return;
  const Communicator alone(world(), {0}, "alone");
  const auto records = test::run_steps(test::deck_of(test::dyadic_stack(), {kDyadicMoe}, 1), alone, 4);
  for (std::size_t i = 1; i < records.size(); ++i) {
    std::size_t changed = 0, all = 0, of_experts = 0;
    for (const auto& [tensor, values] : records[i].weights) {
      const auto& before = records[i - 1].weights.at(tensor);
      for (std::size_t k = 0; k < values.size(); ++k) {
        changed += values[k] != before[k];
        of_experts += values[k] != before[k] && tensor.find("experts") != std::string::npos;
      }
      all += values.size();
    }
    EXPECT_GE(static_cast<double>(changed), 0.05 * static_cast<double>(all)) << "step " << i + 1;
    EXPECT_GT(of_experts, 0u);
  }
}

// --- what the model and the numbers may be ---

TEST(Moe, OptionsOnSomeGrids) {
  const auto moe = [](const std::string& more) {
    return "model.moe={experts: 6, top_k: 2, hidden: 10, balance: {aux: 0.02, z: 0.001}, " + more + "}";
  };
  const std::vector<std::string> options = {
      moe("dispatcher: allgather"),
      moe("dispatcher: hierarchical"),
      moe("score: sigmoid, groups: 3, top_groups: 2"),
      moe("groups: 2, top_groups: 1, renormalize: false"),
      moe("capacity: {factor: 0.75}"),
      moe("capacity: {factor: 1.0, priority: probability}"),
      moe("capacity: {factor: 0.75, scope: micro_batch}"),
      moe("jitter: 0.2, score: sigmoid"),
      moe("permute: fused_weight"),
      moe("shared_hidden: 9"),
      moe("permute: fused_weight, capacity: {factor: 0.8}, dispatcher: hierarchical"),
      moe("forced: {routing: zipf}"),
      moe("forced: {routing: uniform}")};
  test::launch().emulate_nodes(4);
  std::vector<Variant> list;
  const std::vector<Folding> grids = shuffled(foldings(8, 6, kRows));
  const std::size_t each = test::full() ? grids.size() / options.size() : 1;
  for (std::size_t i = 0; i < options.size(); ++i) {
    const std::vector<Folding> some(grids.begin() + static_cast<std::ptrdiff_t>(i * each),
                                    grids.begin() + static_cast<std::ptrdiff_t>((i + 1) * each));
    for (const Variant& variant : variants(some, {options[i]})) list.push_back(variant);
  }
  test::expect_like_serial(test::small_transformer(), list, 2, 1e-11);
  test::launch().emulate_nodes(world().size());
}

TEST(Moe, ScopesOfTheAuxiliaryLoss) {
  const auto moe = [](const std::string& scope) {
    return "model.moe={experts: 6, top_k: 2, hidden: 10, balance: {aux: 0.1, scope: " + scope + "}}";
  };
  std::vector<Variant> list;
  const std::vector<Folding> grids = shuffled(foldings(8, 6, kRows));
  const auto add = [&](const std::string& scope, const Texts& more) {
    Texts how = more;
    how.push_back(moe(scope));
    const auto begin = grids.begin() + static_cast<std::ptrdiff_t>(list.size());
    for (const Variant& variant : variants({begin, begin + 3}, how)) list.push_back(variant);
  };
  // Of 48 samples; the scopes that accumulation does not change, with it.
  const std::vector<Texts> accumulated = {{"batch.micro_batches=3"}, {"batch.micro_batches=2"}};
  for (const Texts& how : accumulated) add("sequence", how);
  add("micro_batch", {});
  for (const char* schedule : {"gpipe", "layered"}) {
    add("global_batch", {"batch.micro_batches=3", std::string("parallel.schedule=") + schedule});
  }
  add("global_batch", {});
  std::erase_if(list, [](const Variant& variant) {
    return !read_deck(test::small_transformer(), "test.yaml", variant.overrides, 8).errors.empty();
  });
  ASSERT_GT(list.size(), 6u);
  test::expect_like_serial(test::small_transformer(), test::sample(list, 7), 2, 1e-11);
}

TEST(Moe, SequencesAndTokensCutOverTheDenseGrid) {
  const std::vector<Folding> some = {{{1, 2, 2, 2}, {2, 2, 2, 1}},
                                     {{2, 4, 1, 1}, {1, 4, 1, 2}},
                                     {{1, 2, 4, 1}, {1, 2, 2, 2}},
                                     {{1, 1, 4, 2}, {4, 2, 1, 1}}};
  std::vector<Variant> list;
  for (const char* how : {"parallel.depth_splits=sequence", "parallel.sequence_shard=true", "attention.split=col"}) {
    for (const Variant& variant : variants(test::sample(some, 2), {kMoe, how})) list.push_back(variant);
  }
  for (const Variant& variant :
       variants(test::sample(some, 1), {kMoe, "parallel.depth_splits=sequence", "parallel.sequence_shard=true",
                                        "attention.split=col", "parallel.overlap=false", "comm.shared_memory=off"})) {
    list.push_back(variant);
  }
  test::expect_like_serial(test::small_transformer(), list, 2, 1e-11);
}

TEST(Moe, SumsOfGradientsAndUpdatesInParts) {
  const std::string sharded = "optimizer.shard=data", partial = "optimizer.shard={data_partial: 2}",
                    torus = "comm.gradient={algorithm: torus2d, dims: [4, 2]}",
                    levels = "comm.gradient.algorithm=two_level", lamb = "optimizer.kind=lamb",
                    lars = "optimizer.kind=lars";
  struct Case {
    Folding folding;
    Texts how;
  };
  const std::vector<Case> cases = {{{{4, 1, 2, 1}, {4, 2, 1, 1}}, {sharded}},
                                   {{{4, 1, 1, 2}, {1, 4, 1, 2}}, {sharded, lamb, "optimizer.gather=lazy"}},
                                   {{{4, 2, 1, 1}, {2, 2, 2, 1}}, {partial}},
                                   {{{2, 1, 2, 2}, {4, 1, 1, 2}}, {partial, lars, "optimizer.gather=lazy"}},
                                   {{{4, 1, 2, 1}, {2, 4, 1, 1}}, {torus}},
                                   {{{8, 1, 1, 1}, {4, 2, 1, 1}}, {torus, sharded, lamb}},
                                   {{{4, 1, 2, 1}, {2, 2, 2, 1}}, {levels, sharded}},
                                   {{{2, 2, 2, 1}, {2, 2, 1, 2}}, {levels, lamb}}};
  test::launch().emulate_nodes(4);
  std::vector<Variant> list;
  for (const Case& c : test::sample(cases, 4)) {
    Texts more = c.how;
    more.push_back(kMoe);
    list.push_back(variants({c.folding}, more).front());
  }
  test::expect_like_serial(test::small_transformer(), list, 2, 1e-11);
  test::launch().emulate_nodes(world().size());
}

// --- pipelines ---

// P39: experts in some stages only. Sizes of what is summed over stages come from the whole model.
std::vector<Variant> pipelines(const std::string& moe, const Texts& more) {
  std::vector<Variant> list;
  for (const std::string& builder : schedule_builders()) {
    for (const int stages : {1, 2, 4}) {
      if ((stages == 1 && builder == "geo") || (stages != 2 && builder == "interleaved")) continue;
      const bool chunks = stages == 2 && (builder == "interleaved" || builder == "modular");
      const std::vector<Folding> all = foldings(8 / stages, 5, kRows);
      const Folding& f = all[(list.size() * 7 + 3) % all.size()];
      Variant variant{overrides(f), 8};
      const auto add = [&](const std::string& key, const std::string& value) {
        variant.overrides.push_back(key + "=" + value);
      };
      add("parallel.schedule", builder);
      add("parallel.stages", std::to_string(stages));
      add("parallel.interleave", chunks ? "2" : "1");
      add("batch.micro_batches", "3");
      if (builder == "geo") add("parallel.extra_in_flight", stages == 2 ? "[1]" : "[1,0,1]");
      if (builder == "list") {
        std::string lists;
        for (int s = 0; s < stages; ++s) lists += (s > 0 ? "," : "") + std::string("'F0-2 I0-2 W0-2'");
        add("parallel.schedule_list", "[" + lists + "]");
      }
      variant.overrides.push_back(moe);
      variant.overrides.insert(variant.overrides.end(), more.begin(), more.end());
      list.push_back(variant);
    }
  }
  return list;
}

TEST(Moe, P39StagesWithoutExperts) {
  test::expect_like_serial(test::dyadic_stack(),
                           test::sample(pipelines("model.moe={every: 8, experts: 5, top_k: 1, hidden: 6}", {}), 8), 3,
                           0);
  const std::string moe = "model.moe={every: 4, experts: 5, top_k: 2, hidden: 9, balance: {aux: 0.1, z: 0.01}}";
  std::vector<Variant> list = pipelines(moe, {"model.layers=4"});
  std::erase_if(list, [](const Variant& variant) {  // 48 samples in 3 micro-batches over the coordinates
    const Deck deck = test::deck_of(test::small_transformer(), variant.overrides, 8);
    return deck.batch.micro * deck.batch.micro_batches * deck.parallel.coordinates() != 48;
  });
  test::expect_like_serial(test::small_transformer(), test::sample(list, 3), 2, 1e-11);
}

TEST(Moe, P39ReportsOfAllStages) {
  FOURFOLD_EIGHT_RANKS();
  const Texts moe = {"model.moe={every: 4, experts: 5, top_k: 2, hidden: 9}", "model.layers=8"};
  const auto one = reports_of(test::small_transformer(), moe, 1, 1);
  Texts staged = moe;
  staged.insert(staged.end(), {"parallel.stages=4", "batch.micro_batches=4", "parallel.moe.expert=2"});
  const auto four = reports_of(test::small_transformer(), staged, 8, 1);
  if (world().rank() == 0) {
    ASSERT_EQ(one[0].moe.size(), 2u);
    EXPECT_EQ(one[0].moe[0].layer, 3);
    EXPECT_EQ(one[0].moe[1].layer, 7);
    expect_same_report(one[0].moe, four[0].moe, 1e-12);
  }
}

}  // namespace
}  // namespace fourfold
