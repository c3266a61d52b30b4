// Mixtures of experts on the folded grid: every MoE grid with every dense grid of 8 ranks trains as one rank does, and
// the faults that others had with experts (P31 to P40 of issue 6). FOURFOLD_FULL=1 runs the whole lists.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "comm/agree.hpp"
#include "comm/collectives.hpp"
#include "comm/launch.hpp"
#include "deck/reader.hpp"
#include "grid/factorisation.hpp"
#include "like_serial.hpp"
#include "mpi_test.hpp"
#include "runs.hpp"
#include "schedule/builders.hpp"
#include "test_support.hpp"
#include "train/evaluate.hpp"
#include "train/loop.hpp"
#include "train/micro_batch.hpp"
#include "train/restart.hpp"

namespace fourfold {
namespace {

using Texts = std::vector<std::string>;
using test::Variant;

const Communicator& world() {
  return test::launch().world();
}
bool eight_ranks() {
  return world().size() == 8;
}
#define FOURFOLD_EIGHT_RANKS() \
  if (!eight_ranks()) GTEST_SKIP() << "NOT TESTED in this launch: the launch of 8 ranks runs it"

struct Folding {
  DenseShape dense;
  MoeShape moe;
};

Texts overrides(const Folding& f) {
  const auto entry = [](const char* axis, int extent) { return std::string(axis) + ": " + std::to_string(extent); };
  return {"parallel.dense={" + entry("data", f.dense.data) + ", " + entry("depth", f.dense.depth) + ", " +
              entry("row", f.dense.row) + ", " + entry("col", f.dense.col) + "}",
          "parallel.moe={" + entry("replica", f.moe.replica) + ", " + entry("expert", f.moe.expert) + ", " +
              entry("row", f.moe.row) + ", " + entry("col", f.moe.col) + "}"};
}

// Every MoE grid with every dense grid whose rows the model's heads allow.
std::vector<Folding> foldings(int ranks, int experts, int rows = 8) {
  std::vector<Folding> all;
  for (const DenseShape& dense : dense_factorisations(ranks)) {
    for (const MoeShape& moe : moe_factorisations(ranks)) {
      if (moe.expert <= experts && dense.row <= rows) all.push_back({dense, moe});
    }
  }
  return all;
}

// In an order of the seed.
std::vector<Folding> shuffled(std::vector<Folding> all) {
  std::mt19937_64 engine(test::seed());
  std::shuffle(all.begin(), all.end(), engine);
  return all;
}

constexpr int kRows = 4;  // of small_transformer()

std::vector<Variant> variants(const std::vector<Folding>& foldings, const Texts& more = {}) {
  std::vector<Variant> list;
  for (const Folding& f : foldings) {
    Variant variant{overrides(f), static_cast<int>(f.dense.size())};
    variant.overrides.insert(variant.overrides.end(), more.begin(), more.end());
    list.push_back(variant);
  }
  return list;
}

// inputs/t0_moe.yaml in fp64.
std::string t0_moe() {
  std::ifstream file(std::string(FOURFOLD_SOURCE_DIR) + "/inputs/t0_moe.yaml");
  std::stringstream text;
  text << file.rdbuf();
  std::string deck = text.str();
  const std::string fp32 = "compute: fp32";
  return deck.replace(deck.find(fp32), fp32.size(), "compute: fp64");
}

// Sizes that do not divide, biases, jitter, a shared expert with its gate, a bias on the choice; experts in every
// second block.
std::string odd_moe() {
  return R"(
run: {name: odd, steps: 4, seed: 9}
model: {kind: transformer, layers: 2, hidden: 13, heads: 8, kv_heads: 2, head_dim: 3, vocab: 29, sequence: 7,
        positions: learned, norm: layer, ffn: {kind: gelu, hidden: 17}, bias: all, init: {std: 0.2},
        moe: {every: 2, experts: 6, top_k: 3, hidden: 11, jitter: 0.1, shared_hidden: 5,
              shared_gate: true, balance: {aux: 0.05, z: 0.01, bias_rate: 0.004}}}
data: {kind: synthetic, synthetic: dyadic, samples: 100, valid_samples: 5}
batch: {global: 16}
optimizer: {kind: momentum, lr: 0.1, weight_decay: 0.1, clip: 1.0}
precision: {compute: fp64}
)";
}

const char* const kMoe = "model.moe={experts: 6, top_k: 2, hidden: 10, balance: {aux: 0.02, z: 0.001}}";

TEST(Moe, FoldingsTo1e11) {
  test::expect_like_serial(t0_moe(), variants(test::sample(foldings(8, 8), 4)), test::full() ? 20 : 2, 1e-11);
}

TEST(Moe, OddSizesTo1e11) {
  test::expect_like_serial(odd_moe(), variants(test::sample(foldings(8, 6), 8)), 3, 1e-11);
}

// Residual stack whose second blocks are mixtures: top-1 and renormalised, so the weights are exactly 1.
const char* const kDyadicMoe = "model.moe={every: 2, experts: 5, top_k: 1, hidden: 6}";

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
      if (stages == 1 && (builder == "geo" || builder == "interleaved")) continue;
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

// What each rank is told about all layers, wherever they are.
std::vector<StepReport> reports_of(const std::string& yaml, const Texts& list, int ranks, int steps) {
  std::vector<StepReport> reports;
  test::on_ranks(ranks, [&](const Communicator& group) {
    test::Training<> run(test::deck_of(yaml, list, ranks), group);
    for (int step = 0; step < steps; ++step) reports.push_back(run.trainer.step());
  });
  return reports;
}

void expect_same_report(const MoeReport& a, const MoeReport& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].layer, b[i].layer);
    EXPECT_NEAR(a[i].aux, b[i].aux, tolerance * a[i].aux);
    EXPECT_NEAR(a[i].z, b[i].z, tolerance * a[i].z);
    EXPECT_NEAR(a[i].entropy, b[i].entropy, tolerance * a[i].entropy);
    EXPECT_EQ(a[i].dropped, b[i].dropped);
    EXPECT_EQ(a[i].max_load, b[i].max_load);
  }
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
    const Deck deck = test::deck_of(odd_moe(), list, ranks.size());
    const GridComms comms = test::grid_comms(deck, ranks);
    const Loader loader(deck);
    MemoryLedger memory;
    Pool pool(memory);
    const PipelinePlan plan = plan_pipeline(deck);
    Model<double> model(deck, comms, pool, plan.part_of(comms.here().stage));
    return evaluate(model, plan, loader, comms, pool, {})->loss;
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

// 10 entries of a router in fp64, against central differences of the whole loss.
TEST(Moe, P40GateGradientIsTheLossesOwn) {
  FOURFOLD_EIGHT_RANKS();
  constexpr double kAux = 0.05, kZ = 0.01, kStep = 1e-5;
  const auto check = [&](const Texts& more, const Communicator& ranks) {
    Texts list = {"model.moe.balance.bias_rate=0", "optimizer.lr=0", "optimizer.weight_decay=0", "optimizer.clip=0",
                  "run.steps=1000"};
    list.insert(list.end(), more.begin(), more.end());
    const Deck deck = test::deck_of(odd_moe(), list, ranks.size());
    test::Training<> run(deck, ranks);
    Param<double>* gate = nullptr;
    for (Param<double>& param : run.params().params()) {
      if (param.spec.name == "layers.1.moe.router.weight") gate = &param;
    }
    ASSERT_NE(gate, nullptr);
    // The same samples and draws each time.
    const auto total = [&] {
      run.trainer.resume(0, 0);
      const StepReport report = run.trainer.step();
      return report.loss + kAux * aux_loss(report.moe) + kZ * z_loss(report.moe);
    };
    total();
    const auto mirror = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), gate->grad);
    const std::vector<double> gradient(mirror.data(), mirror.data() + mirror.extent(0));
    double largest = 0;
    for (const double each : gradient) largest = std::max(largest, std::abs(each));
    for (std::size_t entry = 0; entry < 10; ++entry) {
      const std::size_t at = entry * 7 % gradient.size();
      const auto value = Kokkos::subview(gate->value, at);
      double original = 0;
      Kokkos::deep_copy(original, value);
      Kokkos::deep_copy(value, original + kStep);
      const double above = total();
      Kokkos::deep_copy(value, original - kStep);
      const double below = total();
      Kokkos::deep_copy(value, original);
      EXPECT_NEAR((above - below) / (2 * kStep), gradient[at], 1e-7 * largest + 1e-9) << "entry " << at;
    }
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

// --- memory ---

template <class T>
void expect_ledger(Texts list, const std::string& precision) {
  list.push_back("precision.compute=" + precision);
  std::string text;
  for (const std::string& each : list) text += " " + each;
  SCOPED_TRACE(text);
  const Deck deck = test::deck_of(odd_moe(), list, world().size());
  test::Training<T> run(deck, world());
  run.trainer.step();
  const MemoryPerRank told = memory_of_rank(deck, run.comms.here());
  EXPECT_EQ(run.memory.live(MemoryTag::parameters), told.parameters);
  EXPECT_EQ(run.memory.live(MemoryTag::gradients), told.gradients);
  EXPECT_EQ(run.memory.live(MemoryTag::optimizer), told.optimizer);
  EXPECT_EQ(run.memory.peak(MemoryTag::optimizer), told.optimizer + told.update);
  EXPECT_EQ(run.memory.live(MemoryTag::activations), 0);
}

TEST(Moe, HeldBytesAreToldExactly) {
  FOURFOLD_EIGHT_RANKS();
  for (const Folding& f : test::sample(foldings(8, 6), 4)) {
    expect_ledger<double>(overrides(f), "fp64");
    Texts sharded = overrides(f);
    sharded.insert(sharded.end(), {"optimizer.shard=data", "optimizer.kind=lamb"});
    expect_ledger<kernels::bf16>(sharded, "bf16");
  }
}

// What forward leaves for the backward, with even loads; of uneven parts of the tokens a little more or less.
template <class T>
void expect_activations(Texts list, const std::string& precision, double tolerance) {
  list.insert(list.end(), {"precision.compute=" + precision, "model.moe.forced.routing=uniform"});
  std::string text;
  for (const std::string& each : list) text += " " + each;
  SCOPED_TRACE(text);
  const Deck deck = test::deck_of(t0_moe(), list, world().size());
  test::Training<T> run(deck, world());
  const BatchCoordinate coordinate = batch_coordinate(deck.parallel, run.comms);
  const Batch batch = run.loader.micro_batch(0, 0, coordinate.count, coordinate.index, {});
  const MicroBatch<T> micro = make_micro_batch<T>(deck, run.comms, batch, run.pool);
  Pass<T> pass;
  pass.batch = &micro;
  pass.training = true;
  pass.step = 1;
  pass.step_sequences = deck.batch.global;
  Activations<T> kept;
  run.trainer.model().forward(pass, kept);
  const auto told = static_cast<double>(memory_of_rank(deck, run.comms.here()).activations);
  EXPECT_NEAR(static_cast<double>(run.memory.live(MemoryTag::activations)), told, tolerance * told);
  run.trainer.model().backward(pass, kept);
  EXPECT_EQ(run.memory.live(MemoryTag::activations), 0);
}

TEST(Moe, ActivationsAreTold) {
  FOURFOLD_EIGHT_RANKS();
  const Texts shared = {"model.moe.shared_hidden=32", "model.moe.shared_gate=true"};
  const std::vector<Texts> options = {{},
                                      {"model.moe.permute=fused_weight", "parallel.activations.sublayers=[ffn]"},
                                      {"model.moe.dispatcher=allgather", "model.moe.jitter=0.1"},
                                      {"parallel.activations.default=recompute"},
                                      shared,
                                      {"model.moe.shared_hidden=32", "parallel.sequence_shard=true"},
                                      {"parallel.depth_splits=sequence", "model.moe.balance.scope=micro_batch"}};
  for (const Folding& f : test::sample(foldings(8, 8), 2)) {
    for (const Texts& how : test::sample(options, 3)) {
      Texts list = overrides(f);
      list.insert(list.end(), how.begin(), how.end());
      expect_activations<double>(list, "fp64", 0.05);
      expect_activations<kernels::bf16>(list, "bf16", 0.05);
    }
  }
}

// --- restart ---

TEST(Moe, RestartOnAnotherFolding) {
  FOURFOLD_EIGHT_RANKS();
  const std::string folder =
      broadcast_string(world(), (std::filesystem::path(testing::TempDir()) / "fourfold_moe_restart").string());
  const std::vector<Folding> all = foldings(8, 6);
  struct Job : test::Training<> {
    Job(const Texts& list, const Communicator& ranks) : Training(test::deck_of(odd_moe(), list, ranks.size()), ranks) {}
  };
  const Communicator alone(world(), {world().rank()}, "alone");
  Job unbroken({}, alone);
  for (int step = 0; step < 3; ++step) unbroken.trainer.step();
  const test::Tensors expected = test::values_of(unbroken.shards());
  for (const Folding& from : test::sample(all, 2)) {
    Texts list = overrides(from);
    list.push_back("run.folder=" + folder);
    if (world().rank() == 0) std::filesystem::remove_all(folder);
    barrier(world(), Phase::control);
    {
      Job writer(list, world());
      writer.trainer.step();
      writer.trainer.step();
      prepare_folder(world(), writer.deck);
      save_checkpoint(world(), writer.deck, writer.loader, writer.shards(),
                      {writer.trainer.steps_done(), writer.trainer.cursor()}, {}, {});
    }
    for (const Folding& to : test::sample(all, 2)) {
      Job reader(overrides(to), world());
      const checkpoint::Restart restart =
          checkpoint::load_newest(world(), folder + "/checkpoints", reader.saved.shards());
      ASSERT_TRUE(restart.loaded);
      reader.saved.to_device();
      reader.trainer.resume(restart.loaded->state.integer("step"), restart.loaded->state.integer("cursor"));
      reader.trainer.step();
      test::Shards shards;
      for (const checkpoint::NamedShard& shard : reader.shards()) shards[shard.name] = shard.shard;
      test::expect_part(expected, test::values_of(reader.shards()), shards, 1e-11);
      if (agree_any(world(), testing::Test::HasFailure())) return;
    }
  }
  barrier(world(), Phase::control);
  if (world().rank() == 0) std::filesystem::remove_all(folder);
}

// --- the loop ---

TEST(Moe, MetricsHoldLossesAndLoads) {
  FOURFOLD_EIGHT_RANKS();
  const std::string folder =
      broadcast_string(world(), (std::filesystem::path(testing::TempDir()) / "fourfold_moe_metrics").string());
  if (world().rank() == 0) std::filesystem::remove_all(folder);
  barrier(world(), Phase::control);
  const Texts list = {"run.folder=" + folder, "run.steps=2", "parallel.stages=2", "parallel.moe.expert=2",
                      "model.moe.capacity.factor=0.5"};
  const Deck deck = test::deck_of(odd_moe(), list, 8);
  const GridComms comms = test::grid_comms(deck, world());
  MemoryLedger memory;
  Pool pool(memory);
  EXPECT_EQ(train<double>(deck, comms, pool, {}), ExitCode::done);
  if (world().rank() == 0) {
    std::ifstream file(folder + "/metrics.jsonl");
    std::string line;
    ASSERT_TRUE(std::getline(file, line));
    const auto moe = nlohmann::json::parse(line).at("moe");
    EXPECT_GT(moe.at("aux_loss").get<double>(), 0.5);
    EXPECT_GT(moe.at("z_loss").get<double>(), 0);
    ASSERT_EQ(moe.at("layers").size(), 1u);
    const auto& layer = moe.at("layers")[0];
    EXPECT_EQ(layer.at("layer"), 1);
    EXPECT_GT(layer.at("dropped").get<double>(), 0.4);
    EXPECT_LT(layer.at("dropped").get<double>(), 1);
    EXPECT_GE(layer.at("max_load").get<double>(), 1);
    EXPECT_LE(layer.at("entropy").get<double>(), std::log(6.0) + 1e-12);
    std::filesystem::remove_all(folder);
  }
  barrier(world(), Phase::control);
}

}  // namespace
}  // namespace fourfold
