// Whole runs of every folding: twenty steps, what a rank holds by Piper's resource model, and experts that nobody
// chose.
#include <gtest/gtest.h>

#include <cstdio>

#include "base/error.hpp"
#include "comm/agree.hpp"
#include "moe_runs.hpp"
#include "test_support.hpp"
#include "train/moe_report.hpp"

namespace fourfold {
namespace {

using test::Folding;
using test::foldings;
using test::overrides;
using test::small_t0_moe;
using test::t0_moe;
using test::Texts;
using test::variants;
using test::world;

// --- every folding, twenty steps ---

// Loss, gradient norm, every gradient and every weight of each step, as on one rank.
TEST(MoeLists, EveryFoldingFor20Steps) {
  FOURFOLD_EIGHT_RANKS();
  const std::vector<Folding> all = test::sample(foldings(8, 8), 2);
  for (std::size_t begin = 0; begin < all.size(); begin += 20) {
    const std::vector<Folding> some(all.begin() + static_cast<std::ptrdiff_t>(begin),
                                    all.begin() + static_cast<std::ptrdiff_t>(std::min(begin + 20, all.size())));
    test::expect_like_serial(t0_moe(), variants(some, small_t0_moe()), 20, 1e-11);
    if (agree_any(world(), testing::Test::HasFailure())) return;
    if (world().rank() == 0) {
      std::printf("%zu of %zu foldings, 20 steps each\n", begin + some.size(), all.size());
      std::fflush(stdout);
    }
  }
}

// Which experts are asked for, what is dropped and the losses of balance.
TEST(MoeLists, EveryFoldingDecidesAlike) {
  FOURFOLD_EIGHT_RANKS();
  Texts list = small_t0_moe();
  list.insert(list.end(), {"model.moe.capacity={factor: 0.75, scope: micro_batch, priority: probability}"});
  const auto expected = test::reports_of(t0_moe(), list, 1, 2);
  const std::size_t size = static_cast<std::size_t>(agree_any(world(), expected.size() == 2) ? 2 : 0);
  ASSERT_EQ(size, 2u);
  for (const Folding& f : test::sample(foldings(8, 8), 4)) {
    Texts all = list;
    const Texts grid = overrides(f);
    all.insert(all.end(), grid.begin(), grid.end());
    SCOPED_TRACE(grid[0] + " " + grid[1]);
    const auto reports = test::reports_of(t0_moe(), all, 8, 2);
    for (std::size_t step = 0; step < expected.size(); ++step) {
      test::expect_same_report(expected[step].moe, reports[step].moe, 1e-11);
      for (std::size_t layer = 0; layer < expected[step].moe.size(); ++layer)
        EXPECT_EQ(reports[step].moe[layer].pairs, expected[step].moe[layer].pairs);
    }
    if (agree_any(world(), testing::Test::HasFailure())) return;
  }
}

// --- conservation ---

TEST(MoeLists, PairsReceivedAreTokensTimesK) {
  FOURFOLD_EIGHT_RANKS();
  const Deck deck = test::deck_of(t0_moe(), small_t0_moe(), 8);
  // Of each of 8 ranks: 4 tokens, of whose 8 pairs one was dropped; 7 came to it.
  MoeCounts counts;
  counts.pairs.assign(8, 1);
  counts.tokens = 4;
  counts.dropped = 1;
  counts.received = 7;
  counts.entropy = 1;
  EXPECT_EQ(moe_report(world(), deck.model, {{0, counts}, {1, counts}}).size(), 2u);
  MoeCounts one_more = counts;
  if (world().rank() == 5) one_more.received = 8;
  try {
    moe_report(world(), deck.model, {{0, counts}, {1, one_more}});
    ADD_FAILURE() << "57 of 56 pairs were received, and nobody said so";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("layer 1 received 57 pairs"), std::string::npos) << message;
    EXPECT_NE(message.find("leaves 56"), std::string::npos) << message;
  }
}

// --- memory ---

// Piper's model (shared/systems, A17), bytes of one rank, of a model whose sizes all axes divide:
//   parameters  P_dense / (depth x row x col) + P_experts / (expert x row x col), and what is not cut so: routers on
//               every rank, norms' vectors over col alone
//   gradients   the same
//   optimizer   2 moments of them; sharded: each part over the ranks that sum its gradient, which are all that hold the
//               same matrix; for norms data x depth, since the rows have the same gradient
TEST(MoeLists, HeldBytesArePipers) {
  FOURFOLD_EIGHT_RANKS();
  constexpr std::int64_t kLayers = 2, kHidden = 64, kVocab = 256, kExperts = 8, kFfn = 64;
  const Texts sizes = {"model.layers=2",      "model.hidden=64",           "model.heads=8",    "model.kv_heads=8",
                       "model.head_dim=8",    "model.vocab=256",           "model.sequence=8", "model.ffn.hidden=64",
                       "model.moe.hidden=64", "model.tie_embeddings=false"};
  for (const Folding& f : test::sample(foldings(8, 8), 4)) {
    for (const bool sharded : {false, true}) {
      Texts list = overrides(f);
      list.insert(list.end(), sizes.begin(), sizes.end());
      if (sharded) list.push_back("optimizer.shard=data");
      SCOPED_TRACE(list[0] + " " + list[1] + (sharded ? " sharded" : ""));
      test::Training<double> run(test::deck_of(t0_moe(), list, 8), world());
      run.trainer.step();
      const std::int64_t dense = 2 * kVocab * kHidden + kLayers * 4 * kHidden * kHidden;
      const std::int64_t norms = (2 * kLayers + 1) * kHidden;
      const std::int64_t routers = kLayers * kExperts * kHidden;
      const std::int64_t experts = kLayers * kExperts * 3 * kFfn * kHidden;
      const std::int64_t held = dense / (f.dense.depth * f.dense.row * f.dense.col) + norms / f.dense.col + routers +
                                experts / (f.moe.expert * f.moe.row * f.moe.col);
      const std::int64_t of_norms = norms / (f.dense.data * f.dense.depth * f.dense.col);
      const std::int64_t updated = sharded ? (dense + routers + experts) / 8 + of_norms : held;
      EXPECT_EQ(run.memory.live(MemoryTag::parameters), 8 * held);
      EXPECT_EQ(run.memory.live(MemoryTag::gradients), 8 * held);
      EXPECT_EQ(run.memory.live(MemoryTag::optimizer), 2 * 8 * updated);
    }
    if (agree_any(world(), testing::Test::HasFailure())) return;
  }
}

// --- experts that nobody chose ---

// They join the sums with a gradient of zero and decay as every matrix does, w (1 - rate x weight_decay), in their
// whole on every grid and with every kind of update; their biases are vectors and stay.
TEST(MoeLists, P35UnusedExpertsDecayOnEveryGrid) {
  FOURFOLD_EIGHT_RANKS();
  const Texts updates = {"optimizer.kind=adamw", "optimizer.kind=momentum", "optimizer.shard=data"};
  Texts list = small_t0_moe();
  list.insert(list.end(), {"model.moe.forced={routing: zipf, exponent: 300}", "model.moe.top_k=1", "optimizer.clip=0",
                           "model.moe.balance.aux=0", "model.moe.balance.z=0"});
  std::size_t number = 0;
  for (const Folding& f : test::sample(foldings(8, 8), 3)) {
    Texts all = list;
    const Texts grid = overrides(f);
    all.insert(all.end(), grid.begin(), grid.end());
    all.push_back(updates[number++ % updates.size()]);
    SCOPED_TRACE(grid[0] + " " + grid[1] + " " + all.back());
    const Deck deck = test::deck_of(t0_moe(), all, 8);
    test::Training<> run(deck, world());
    const test::Tensors first = test::values_of(run.shards());
    const double rate = run.trainer.step().learning_rate;
    const test::Tensors second = test::values_of(run.shards());
    double unused = 0, used = 0;  // elements of the first layer's experts
    for (const auto& [name, before] : first) {
      if (!name.starts_with("/params/layers.0.moe.experts.")) continue;
      const std::vector<double>& after = second.at(name);
      if (name.starts_with("/params/layers.0.moe.experts.0.")) {
        for (std::size_t i = 0; i < before.size(); ++i)
          used += after[i] != before[i] * (1 - rate * deck.optimizer.weight_decay);
        continue;
      }
      unused += static_cast<double>(before.size());
      for (std::size_t i = 0; i < before.size(); ++i)
        EXPECT_DOUBLE_EQ(after[i], before[i] * (1 - rate * deck.optimizer.weight_decay)) << name;
    }
    double sums[2] = {unused, used};
    all_reduce_sum<double>(world(), sums, Summation::deterministic, Phase::control);
    EXPECT_GE(sums[0], 7 * 3 * deck.model.hidden * deck.model.moe->hidden);
    EXPECT_GT(sums[1], 0);
    if (agree_any(world(), testing::Test::HasFailure())) return;
  }
}

}  // namespace
}  // namespace fourfold
