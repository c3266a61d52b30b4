// Stages of unequal width: each stage its own grid. One launch of 8 ranks loops over all; FOURFOLD_FULL=1 runs every
// case.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <random>
#include <set>
#include <thread>

#include "comm/agree.hpp"
#include "comm/collectives.hpp"
#include "comm/launch.hpp"
#include "comm/ledger.hpp"
#include "grid/factorisation.hpp"
#include "like_serial.hpp"
#include "mpi_test.hpp"
#include "test_support.hpp"
#include "train/evaluate.hpp"
#include "train/replica_check.hpp"
#include "train/restart.hpp"

namespace fourfold {
namespace {

using test::Variant;

const Communicator& world() {
  return test::launch().world();
}

std::string grids_text(const std::vector<DenseShape>& grids) {
  std::string text = "parallel.stage_grids=[";
  for (const DenseShape& grid : grids) {
    text += (&grid == grids.data() ? "{" : ", {") + std::string("data: ") + std::to_string(grid.data) +
            ", depth: " + std::to_string(grid.depth) + ", row: " + std::to_string(grid.row) +
            ", col: " + std::to_string(grid.col) + "}";
  }
  return text + "]";
}

Variant variant(const std::vector<DenseShape>& grids, int micro_batches, const std::string& builder = "1f1b",
                const std::vector<std::string>& more = {}) {
  Variant result;
  result.ranks = 0;
  for (const DenseShape& grid : grids) result.ranks += static_cast<int>(grid.size());
  result.overrides = {grids_text(grids), "batch.micro_batches=" + std::to_string(micro_batches),
                      "parallel.schedule=" + builder};
  result.overrides.insert(result.overrides.end(), more.begin(), more.end());
  return result;
}

Variant with(Variant v, const std::vector<std::string>& more) {
  v.overrides.insert(v.overrides.end(), more.begin(), more.end());
  return v;
}

// The replicas (1, 2, 1) on 4 ranks and the widths (3, 3, 2) on 8, over every axis.
std::vector<Variant> named_widths(bool heads) {
  const DenseShape one{};
  std::vector<Variant> list = {variant({one, {2, 1, 1, 1}, one}, 4),
                               variant({one, {2, 1, 1, 1}, one}, 3, "zero_bubble")};
  const std::array<DenseShape, 4> three = {DenseShape{3, 1, 1, 1}, {1, 3, 1, 1}, {1, 1, 3, 1}, {1, 1, 1, 3}};
  const std::array<DenseShape, 4> two = {DenseShape{2, 1, 1, 1}, {1, 2, 1, 1}, {1, 1, 2, 1}, {1, 1, 1, 2}};
  for (std::size_t a = 0; a < three.size(); ++a) {
    if (heads && three[a].row == 3) continue;  // four heads
    for (std::size_t b = 0; b < two.size(); ++b) {
      list.push_back(variant({three[a], three[(a + b) % 2 == 0 ? a : 3], two[b]}, b % 2 == 0 ? 4 : 3));
    }
  }
  return list;
}

TEST(Widths, NamedOnesOfTheDyadicStackBitForBit) {
  test::expect_like_serial(test::dyadic_stack(), test::sample(named_widths(false), 6), 3, 0);
}

TEST(Widths, NamedOnesOfATransformerTo1e11) {
  std::vector<Variant> list;
  for (const Variant& v : named_widths(true)) {
    list.push_back(with(v, {"model.layers=4"}));
    list.push_back(with(v, {"model.layers=4", "model.tie_embeddings=true"}));
  }
  test::expect_like_serial(test::small_transformer(), test::sample(list, 6), 3, 1e-11);
}

// Stages of 8 ranks in all and of sizes and grids drawn at random; micro-batches that do not divide, some of fewer
// sequences than a stage has coordinates. `rows`: what row may be.
std::vector<Variant> drawn(int count, const std::set<int>& rows,
                           const std::vector<std::vector<std::string>>& variants) {
  std::mt19937_64 engine(test::seed());
  const auto draw = [&](std::size_t most) { return engine() % most; };
  const std::vector<std::string> builders = {"1f1b",        "gpipe",   "zero_bubble", "modular",
                                             "interleaved", "layered", "geo"};
  std::vector<Variant> list;
  while (static_cast<int>(list.size()) < count) {
    const std::size_t stages = 2 + draw(3);
    std::vector<int> sizes(stages, 1);
    for (std::size_t left = 8 - stages; left > 0; --left) ++sizes[draw(stages)];
    std::vector<DenseShape> grids;
    for (const int size : sizes) {
      std::vector<DenseShape> legal = dense_factorisations(size);
      std::erase_if(legal, [&](const DenseShape& grid) { return !rows.contains(grid.row); });
      grids.push_back(legal[draw(legal.size())]);
    }
    std::string builder = builders[list.size() % builders.size()];
    if (builder == "interleaved" && stages > 3) builder = "1f1b";  // too few units for two chunks a stage
    std::vector<std::string> more = variants[draw(variants.size())];
    const bool chunks = (builder == "modular" || builder == "interleaved") && stages <= 3;
    if (chunks) more.emplace_back("parallel.interleave=2");
    if (builder == "geo") {
      std::string extra = "parallel.extra_in_flight=[";
      for (std::size_t boundary = 0; boundary + 1 < stages; ++boundary) extra += boundary > 0 ? ",0" : "1";
      more.push_back(extra + "]");
    }
    const std::array<int, 6> counts = {1, 2, 3, 4, 6, 24};  // 24: micro-batches of 2 and 5 sequences
    list.push_back(variant(grids, counts[draw(counts.size())], builder, more));
  }
  return list;
}

TEST(Widths, DrawnOnesOfTheDyadicStackBitForBit) {
  const std::vector<std::vector<std::string>> variants = {
      {}, {"optimizer.shard=data"}, {"parallel.overlap=false"}, {"batch.global=24"}};
  test::expect_like_serial(test::dyadic_stack(), test::sample(drawn(200, {1, 2, 3, 4, 5, 6, 7}, variants), 8), 3, 0);
}

TEST(Widths, DrawnOnesOfATransformerTo1e11) {
  test::launch().emulate_nodes(world().size());  // one node, for two_level; other tests leave several
  const std::string six = "model.layers=6", tied = "model.tie_embeddings=true";
  const std::vector<std::vector<std::string>> variants = {
      {six},
      {six, tied},
      {six, tied, "optimizer.shard=data", "optimizer.gather=lazy"},
      {six, tied, "optimizer.kind=lamb"},
      {six, tied, "optimizer.kind=lamb", "optimizer.shard=data"},
      {six, tied, "parallel.depth_splits=sequence"},
      {six, tied, "comm.gradient.algorithm=two_level", "optimizer.shard=data"},
      {six, "parallel.sequence_shard=true", "attention.split=col"},
      {six, tied, "parallel.sequence_shard=true", "parallel.depth_splits=sequence"},
      {six, "parallel.depth_splits=sequence", "parallel.overlap=false"},
      {six, tied, "loss.goldfish.k=3", "loss.goldfish.h=2", "model.bias=all", "model.positions=learned",
       "model.norm=layer"}};
  test::expect_like_serial(test::small_transformer(), test::sample(drawn(200, {1, 2, 4}, variants), 8), 3, 1e-11);
}

// Plain nets: a boundary's columns are cut over col and row in turn.
TEST(Widths, PlainNets) {
  const std::vector<Variant> nets = {variant({{2, 1, 1, 1}, {1, 1, 3, 1}, {1, 1, 1, 3}}, 3),
                                     variant({{1, 1, 3, 2}, {1, 2, 1, 1}}, 4, "zero_bubble"),
                                     variant({{1, 1, 1, 2}, {1, 1, 2, 2}, {2, 1, 1, 1}}, 2, "gpipe")};
  test::expect_like_serial(test::dyadic_mlp(), nets, 4, 0);
  for (const bool tied : {true, false}) {
    test::expect_like_serial(test::dyadic_embedding(tied),
                             {variant({{1, 1, 3, 1}, {2, 1, 1, 2}}, 3), variant({{1, 3, 1, 1}, {1, 1, 1, 5}}, 2),
                              variant({{3, 1, 1, 1}, {1, 5, 1, 1}}, 4, "1f1b", {"optimizer.shard=data"})},
                             4, 0);
  }
}

// --- one run on some ranks ---

void run_on(const Variant& v, const std::string& yaml, int steps,
            const std::function<void(test::Training<>&, const StageOperation&)>& observe,
            const std::function<void(test::Training<>&, const StepReport&)>& after = {}) {
  test::on_ranks(v.ranks, [&](const Communicator& ranks) {
    test::Training<> run(test::deck_of(yaml, v.overrides, ranks.size()), ranks);
    if (observe) run.trainer.observe([&](const StageOperation& operation) { observe(run, operation); });
    for (int step = 0; step < steps; ++step) {
      const StepReport report = run.trainer.step();
      if (after) after(run, report);
    }
  });
}

std::vector<Variant> some_widths(const std::vector<std::string>& more) {
  const std::vector<Variant> list = {variant({{}, {2, 1, 1, 1}, {}}, 3),
                                     variant({{1, 1, 2, 1}, {3, 1, 1, 1}, {1, 1, 1, 3}}, 4, "zero_bubble"),
                                     variant({{1, 4, 1, 1}, {1, 1, 2, 2}}, 24, "gpipe"),
                                     variant({{5, 1, 1, 1}, {1, 2, 1, 1}, {}}, 24, "1f1b"),
                                     variant({{1, 1, 4, 1}, {2, 1, 1, 2}}, 2, "modular", {"parallel.interleave=2"}),
                                     variant({{1, 2, 1, 1}, {1, 3, 1, 1}, {1, 2, 1, 1}}, 2, "layered")};
  std::vector<Variant> result;
  for (const Variant& v : list) result.push_back(with(v, more));
  return result;
}

// The wire carries what the repartitions' plans say, in as many messages.
TEST(Widths, TheLedgerHasTheBytesOfThePlan) {
  if (world().size() != 8) GTEST_SKIP() << "NOT TESTED in this launch: the launch of 8 ranks runs it";
  for (const Variant& v : some_widths({"model.layers=6", "parallel.sequence_shard=true"})) {
    SCOPED_TRACE(v.overrides[0]);
    world().ledger().clear();
    run_on(v, test::small_transformer(), 1, {}, [&](test::Training<>& run, const StepReport&) {
      const CommLedger& ledger = world().ledger();
      std::array<std::int64_t, 4> sent{ledger.sum(Operation::send, "stage", Phase::forward).bytes,
                                       ledger.sum(Operation::send, "stage", Phase::backward).bytes,
                                       ledger.group_sum("stage").ring_bytes, ledger.group_sum("stage").messages};
      all_reduce_sum<std::int64_t>(run.comms.world(), sent, Summation::fast, Phase::control);
      std::int64_t forwards = 0, backwards = 0, pairs = 0;
      for (const StageCrossing& crossing : stage_crossings(run.deck, run.trainer.pipeline())) {
        forwards += crossing.forwards;
        backwards += crossing.backwards;
        pairs += std::ssize(crossing.pairs);
      }
      const std::int64_t times = 8 * run.deck.batch.micro_batches;
      EXPECT_GT(forwards, 0);
      EXPECT_EQ(sent[0], times * forwards);
      EXPECT_EQ(sent[1], times * backwards);
      EXPECT_EQ(sent[2], times * (forwards + backwards));
      EXPECT_EQ(sent[3], run.deck.batch.micro_batches * pairs);
    });
    if (agree_any(world(), testing::Test::HasFailure())) return;
  }
  // By hand: 12 sequences of 8 tokens and 16 columns, from one rank to two halves and on to a rank; no replicas.
  const Deck deck = test::deck_of(test::small_transformer(), variant({{}, {2, 1, 1, 1}, {}}, 4).overrides, 4);
  for (const StageCrossing& crossing : stage_crossings(deck, plan_pipeline(deck))) {
    EXPECT_EQ(crossing.forwards, 12 * 8 * 16);
    EXPECT_EQ(crossing.backwards, 12 * 8 * 16);
  }
  // All of row's replicas get an activation; all of the other side's get its gradient.
  const Deck rows = test::deck_of(test::small_transformer(), variant({{1, 1, 4, 1}, {1, 1, 2, 1}}, 4).overrides, 6);
  const StageCrossing crossing = stage_crossings(rows, plan_pipeline(rows)).front();
  EXPECT_EQ(crossing.forwards, 2 * 12 * 8 * 16);
  EXPECT_EQ(crossing.backwards, 4 * 12 * 8 * 16);
}

// What every rank holds is what `check` says, byte for byte, whatever its stage's grid.
TEST(Widths, MemoryIsToldToTheByte) {
  if (world().size() != 8) GTEST_SKIP() << "NOT TESTED in this launch: the launch of 8 ranks runs it";
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {"model.layers=6", "model.tie_embeddings=true", "model.dropout=0"},
           {"model.layers=6", "model.dropout=0", "optimizer.shard=data", "parallel.depth_splits=sequence"}}) {
    for (const Variant& v : test::sample(some_widths(more), 4)) {
      SCOPED_TRACE(v.overrides[0]);
      std::int64_t most = 0;
      run_on(
          v, test::small_transformer(), 1,
          [&](test::Training<>& run, const StageOperation& operation) {
            if (is_compute(operation.kind)) most = std::max(most, run.memory.live(MemoryTag::activations));
          },
          [&](test::Training<>& run, const StepReport&) {
            const Graph graph = describe(run.deck.model);
            const PipelinePlan& plan = run.trainer.pipeline();
            const MemoryPerRank told = memory_of_rank(run.deck, plan, run.comms.here());
            EXPECT_EQ(most, told.activations);
            EXPECT_EQ(run.memory.live(MemoryTag::parameters), told.parameters);
            EXPECT_EQ(run.memory.live(MemoryTag::gradients), told.gradients);
            EXPECT_EQ(run.memory.live(MemoryTag::optimizer), told.optimizer);
            std::int64_t largest = told.total();
            all_reduce_max<std::int64_t>(run.comms.world(), {&largest, 1}, Phase::control);
            EXPECT_EQ(largest, memory_per_rank(run.deck, plan).total());
          });
      if (agree_any(world(), testing::Test::HasFailure())) return;
    }
  }
}

// No message counts on a buffer of MPI's, whoever is late; and replicas are replicas.
TEST(Widths, SynchronousSendsAndSleepsFinish) {
  if (world().size() != 8) GTEST_SKIP() << "NOT TESTED in this launch: the launch of 8 ranks runs it";
  std::mt19937_64 engine(test::seed() + static_cast<std::uint64_t>(world().rank()));
  const std::vector<std::string> more = {"debug.synchronous_sends=true", "debug.replica_check=1", "model.layers=6",
                                         "model.tie_embeddings=true"};
  for (const Variant& v : test::sample(some_widths(more), 3)) {
    SCOPED_TRACE(v.overrides[0]);
    run_on(
        v, test::small_transformer(), 2,
        [&](test::Training<>&, const StageOperation&) {
          std::this_thread::sleep_for(std::chrono::microseconds(engine() % 400));
        },
        [&](test::Training<>& run, const StepReport& report) {
          EXPECT_NO_THROW(
              check_replicas(run.comms.world(), report.step, run.shards(), report.coordinate, report.samples_hash));
        });
    if (agree_any(world(), testing::Test::HasFailure())) return;
  }
}

// 29 samples: ragged batches, empty parts, waves that are not full.
TEST(Widths, EvaluationThroughStages) {
  if (world().size() != 8) GTEST_SKIP() << "NOT TESTED in this launch: the launch of 8 ranks runs it";
  const auto evaluation = [](const std::vector<std::string>& overrides, const Communicator& ranks) {
    const Deck deck = test::deck_of(test::small_transformer(), overrides, ranks.size());
    const GridComms comms = test::grid_comms(deck, ranks);
    const Loader loader(deck);
    MemoryLedger memory;
    Pool pool(memory);
    const PipelinePlan plan = plan_pipeline(deck);
    Model<double> model(deck, comms, pool, plan.part_of(comms.here().stage));
    return *evaluate(model, plan, loader, comms, pool, {});
  };
  const Communicator alone(world(), {world().rank()}, "alone");
  const EvalReport one = evaluation({"model.layers=6"}, alone);
  for (const Variant& v : some_widths({"model.layers=6"})) {
    SCOPED_TRACE(v.overrides[0]);
    test::on_ranks(v.ranks, [&](const Communicator& ranks) {
      const EvalReport report = evaluation(v.overrides, ranks);
      EXPECT_EQ(report.samples, 29);
      EXPECT_EQ(report.targets, one.targets);
      EXPECT_NEAR(report.loss, one.loss, 1e-12 * one.loss);
    });
  }
}

std::string folder(std::size_t number) {
  return (std::filesystem::path(testing::TempDir()) / ("fourfold_widths_" + std::to_string(number))).string();
}

// Unequal pipelines go on from equal ones and from each other, and the other way round.
TEST(Widths, RestartOnAnyOther) {
  if (world().size() != 8) GTEST_SKIP() << "NOT TESTED in this launch: the launch of 8 ranks runs it";
  const std::vector<std::string> model = {"model.layers=6", "model.tie_embeddings=true"};
  std::vector<Variant> variants = some_widths(model);
  variants.push_back(with({{"parallel.stages=2", "parallel.dense.data=2", "parallel.dense.row=2"}, 8}, model));
  variants.push_back(with({{"parallel.stages=3", "parallel.dense.depth=2"}, 6}, model));
  variants.push_back(with(variant({{2, 1, 1, 1}, {1, 2, 1, 1}, {4, 1, 1, 1}}, 2), {"optimizer.shard=data"}));
  variants.back().overrides.insert(variants.back().overrides.end(), model.begin(), model.end());
  std::vector<std::pair<std::size_t, std::size_t>> pairs;
  for (std::size_t from = 0; from < variants.size(); ++from) {
    for (std::size_t to = 0; to < variants.size(); ++to) pairs.emplace_back(from, to);
  }
  const Communicator alone(world(), {world().rank()}, "alone");
  const auto serial = test::run_steps(test::deck_of(test::small_transformer(), model, 1), alone, 3);
  std::set<std::size_t> written;
  std::vector<std::pair<std::size_t, std::size_t>> chosen = test::sample(pairs, 1);
  chosen.emplace_back(1, 6);  // to equal stages, and back
  chosen.emplace_back(6, 8);
  for (const auto& [from, to] : chosen) {
    SCOPED_TRACE(std::to_string(from) + " to " + std::to_string(to));
    const auto overrides = [&](std::size_t number) {
      std::vector<std::string> list = variants[number].overrides;
      list.push_back("run.folder=" + folder(from));
      return list;
    };
    if (written.insert(from).second) {
      if (world().rank() == 0) std::filesystem::remove_all(folder(from));
      barrier(world(), Phase::control);
      test::on_ranks(variants[from].ranks, [&](const Communicator& ranks) {
        test::Training<> run(test::deck_of(test::small_transformer(), overrides(from), ranks.size()), ranks);
        for (int step = 0; step < 2; ++step) run.trainer.step();
        prepare_folder(ranks, run.deck);
        save_checkpoint(ranks, run.deck, run.loader, run.shards(), {run.trainer.steps_done(), run.trainer.cursor()}, {},
                        {});
      });
    }
    test::on_ranks(variants[to].ranks, [&](const Communicator& ranks) {
      test::Training<> run(test::deck_of(test::small_transformer(), overrides(to), ranks.size()), ranks);
      const checkpoint::Restart restart =
          checkpoint::load_newest(ranks, folder(from) + "/checkpoints", run.saved.shards());
      ASSERT_TRUE(restart.loaded);
      run.saved.to_device();
      run.trainer.resume(restart.loaded->state.integer("step"), restart.loaded->state.integer("cursor"));
      const StepReport report = run.trainer.step();
      EXPECT_LE(std::abs(report.loss - serial[2].loss), 1e-11 * serial[2].loss);
      EXPECT_LE(std::abs(report.grad_norm - serial[2].grad_norm), 1e-11 * serial[2].grad_norm);
    });
    if (agree_any(world(), testing::Test::HasFailure())) return;
  }
}

// bf16 on the wire, sums in fp32: like one rank but for roundings.
TEST(Widths, Bf16) {
  if (world().size() != 8) GTEST_SKIP() << "NOT TESTED in this launch: the launch of 8 ranks runs it";
  const std::vector<std::string> more = {"precision.compute=bf16", "model.layers=6", "model.tie_embeddings=true"};
  const Communicator alone(world(), {world().rank()}, "alone");
  const auto serial = test::run_steps(test::deck_of(test::small_transformer(), more, 1), alone, 4);
  for (const Variant& v : test::sample(some_widths(more), 2)) {
    SCOPED_TRACE(v.overrides[0]);
    test::on_ranks(v.ranks, [&](const Communicator& ranks) {
      const Deck deck = test::deck_of(test::small_transformer(), v.overrides, ranks.size());
      ranks.ledger().clear();
      const auto records = test::run_steps(deck, ranks, 4);
      for (std::size_t i = 0; i < records.size(); ++i) {
        EXPECT_NEAR(records[i].loss, serial[i].loss, 2e-3 * serial[i].loss) << "step " << i + 1;
        EXPECT_NEAR(records[i].grad_norm, serial[i].grad_norm, 3e-2 * serial[i].grad_norm) << "step " << i + 1;
      }
      std::int64_t sent = ranks.ledger().sum(Operation::send, "stage", Phase::forward).bytes, told = 0;
      all_reduce_sum<std::int64_t>(ranks, {&sent, 1}, Summation::fast, Phase::control);
      for (const StageCrossing& crossing : stage_crossings(deck, plan_pipeline(deck))) told += crossing.forwards;
      EXPECT_EQ(sent, 4 * deck.batch.micro_batches * 2 * told);
    });
    if (agree_any(world(), testing::Test::HasFailure())) return;
  }
}

}  // namespace
}  // namespace fourfold
