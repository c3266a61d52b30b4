// Evaluation on any number of ranks, sums of losses, refusal of what is not finite, formats.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>

#include "base/error.hpp"
#include "base/timer.hpp"
#include "base/units.hpp"
#include "comm/collectives.hpp"
#include "comm/launch.hpp"
#include "model/describe.hpp"
#include "mpi_test.hpp"
#include "runs.hpp"
#include "train/calibrate.hpp"
#include "train/console.hpp"
#include "train/evaluate.hpp"
#include "train/micro_batch.hpp"
#include "train/stop_request.hpp"
#include "train/trainer.hpp"
#include "train/watch_limits.hpp"

namespace fourfold {
namespace {

const Communicator& world() {
  return test::launch().world();
}

EvalReport evaluation_on(const std::string& yaml, const Communicator& ranks,
                         const std::vector<std::string>& overrides) {
  const Deck deck = test::deck_of(yaml, overrides, ranks.size());
  const GridComms comms = test::grid_comms(deck, ranks);
  MemoryLedger ledger;
  Pool pool(ledger);
  const Loader loader(deck);
  const PipelinePlan plan = plan_pipeline(deck);
  Model<double> model(deck, comms, pool, plan.part_of(comms.here().stage));
  return *evaluate(model, plan, loader, comms, pool, {});
}

// 29 samples: ragged batches, ranks without any.
TEST(Evaluate, ExactOnAnyNumberOfRanks) {
  const Communicator alone(world(), {world().rank()}, "alone");
  const EvalReport one = evaluation_on(test::small_transformer(), alone, {});
  EXPECT_EQ(one.samples, 29);
  EXPECT_EQ(one.targets, 29 * 8);
  EXPECT_FALSE(one.bits_per_byte);
  for (int ranks = 1; ranks <= world().size(); ++ranks) {
    for (const std::string micro : {"1", "3"}) {
      test::on_ranks(ranks, [&](const Communicator& some) {
        const EvalReport report =
            evaluation_on(test::small_transformer(), some,
                          {"batch.global=" + std::to_string(3 * ranks), "batch.micro_batches=" + micro});
        EXPECT_NEAR(report.loss, one.loss, 1e-13 * one.loss) << ranks;
        EXPECT_EQ(report.targets, one.targets);
      });
    }
  }
}

TEST(Evaluate, StopDropsIt) {
  const Deck deck =
      test::deck_of(test::small_transformer(), {"batch.global=12", "batch.micro_batches=1"}, world().size());
  const GridComms comms = test::grid_comms(deck, world());
  MemoryLedger ledger;
  Pool pool(ledger);
  const Loader loader(deck);
  Model<double> model(deck, comms, pool);
  int batches = 0;
  const auto progress = [&](std::int64_t done, std::int64_t all) {
    EXPECT_EQ(done, ++batches);
    EXPECT_EQ(all, loader.eval_batches());
    return done == 3;
  };
  EXPECT_FALSE(evaluate(model, plan_pipeline(deck), loader, comms, pool, progress));
  EXPECT_EQ(batches, 3);
}

// Three targets with loss 6 and one with loss 10 make 4, not 6; a rank without targets adds nothing.
TEST(Loss, SumsBeforeTheQuotient) {
  if (world().size() < 2) GTEST_SKIP() << "NOT TESTED in this launch: those of 3 and 4 ranks run it";
  const Deck deck =
      test::deck_of(test::small_transformer(), {"batch.global=12", "batch.micro_batches=1"}, world().size());
  const GridComms comms = test::grid_comms(deck, world());
  LossSum mine;
  if (world().rank() == 0) mine = {6.0, 3};
  if (world().rank() == 1) mine = {10.0, 1};
  const LossSum all = sum_over_coordinates(mine, comms, Phase::update);
  EXPECT_EQ(all.loss / static_cast<double>(all.targets), 4.0);
}

// The step refuses before the update, on all ranks, and names a tensor.
TEST(Trainer, StopsBeforeTheUpdate) {
  const Deck deck =
      test::deck_of(test::small_transformer(), {"batch.global=12", "batch.micro_batches=1"}, world().size());
  test::Training<> run(deck, world());
  run.trainer.step();
  Param<double>& last = run.params().params().back();
  Param<double>& first = run.params().params().front();
  last.value(0) = std::numeric_limits<double>::infinity();
  const double before = first.value(0);
  try {
    run.trainer.step();
    FAIL() << "not finite";
  } catch (const Error& error) {
    EXPECT_EQ(error.caller(), Caller::all_ranks);
    EXPECT_NE(std::string(error.what()).find("step 2"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("whose gradient is not finite: "), std::string::npos) << error.what();
  }
  EXPECT_EQ(first.value(0), before);
  EXPECT_EQ(run.trainer.steps_done(), 1);
}

// A steady loop allocates nothing: after two steps every block comes from the pool.
TEST(Trainer, SteadyStepsAllocateNothing) {
  const Deck deck =
      test::deck_of(test::small_transformer(), {"batch.global=24", "batch.micro_batches=2"}, world().size());
  test::Training<> run(deck, world());
  run.trainer.step();
  run.trainer.step();
  const std::int64_t allocations = run.pool.allocations();
  for (int step = 0; step < 5; ++step) run.trainer.step();
  EXPECT_EQ(run.pool.allocations(), allocations);
}

// The products that the ranks of a real step count, against formulas in the model's sizes: 6 FLOPs for each active
// matrix element and token; attention forward 4 d, backward 10 d for each head, query and key on or below the diagonal.
// Model FLOPs: half the square, backward twice forward; what col ranks repeat of attention is no model FLOP.
TEST(Flops, OfAStepAreTheFormulas) {
  struct Sizes {
    std::int64_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, sequence;
    bool gated;
  };
  const auto expect = [](const Sizes& s, std::vector<std::string> overrides, const Communicator& ranks, int repeats) {
    overrides.insert(overrides.end(), {"batch.global=24", "batch.micro_batches=2", "model.dropout=0"});
    const Deck deck = test::deck_of(test::small_transformer(), overrides, ranks.size());
    test::Training<> run(deck, ranks);
    const std::int64_t before = ranks.clock().flops();
    const StepReport report = run.trainer.step();
    std::int64_t computed = ranks.clock().flops() - before;
    all_reduce_sum<std::int64_t>(ranks, {&computed, 1}, Summation::fast, Phase::control);

    const std::int64_t width = s.heads * s.head_dim;
    const std::int64_t matrices = s.layers * (2 * s.hidden * width + 2 * s.hidden * s.kv_heads * s.head_dim +
                                              (s.gated ? 3 : 2) * s.hidden * s.ffn) +
                                  s.vocab * s.hidden;
    const std::int64_t samples = 24, pairs = s.sequence * (s.sequence + 1) / 2;
    EXPECT_EQ(report.tokens, samples * s.sequence);
    EXPECT_EQ(computed, report.tokens * 6 * matrices + repeats * samples * s.layers * 14 * width * pairs);
    EXPECT_EQ(describe(deck.model).training_flops(), 6 * matrices + s.layers * 6 * width * s.sequence);
  };
  const Sizes grouped{2, 16, 4, 2, 4, 24, 31, 8, true}, plain{3, 16, 4, 4, 4, 20, 37, 7, false};
  const std::vector<std::string> of_plain = {
      "model.layers=3", "model.kv_heads=4", "model.ffn.kind=gelu",       "model.ffn.hidden=20",
      "model.vocab=37", "model.sequence=7", "model.tie_embeddings=true", "model.positions=learned",
      "model.bias=all"};
  expect(grouped, {}, world(), 1);
  expect(plain, of_plain, world(), 1);
  if (world().size() != 4) return;
  expect(grouped, {"parallel.dense.row=2", "parallel.dense.col=2"}, world(), 2);
  expect(grouped, {"parallel.dense.row=2", "parallel.dense.col=2", "attention.split=col"}, world(), 1);
}

TEST(Calibrate, WhereTheCeilingComesFrom) {
  Deck deck = test::deck_of(test::small_transformer(), {"batch.global=12", "batch.micro_batches=1"}, world().size());
  EXPECT_EQ(find_ceiling<float>(deck, world(), false).flops_per_second, 0);
  deck.run.machine = "m.yaml";
  Machine& machine = deck.run.description.emplace();
  machine.name = "small";
  machine.fp64 = 3;
  machine.fp32 = 5;
  machine.bf16 = 7;
  EXPECT_EQ(find_ceiling<double>(deck, world(), false).flops_per_second, 3.0 * world().size());
  EXPECT_EQ(find_ceiling<float>(deck, world(), false).flops_per_second, 5.0 * world().size());
  const Ceiling said = find_ceiling<kernels::bf16>(deck, world(), false);
  EXPECT_EQ(said.flops_per_second, 7.0 * world().size());
  EXPECT_EQ(said.source, "said of small by m.yaml");
  const Ceiling measured = find_ceiling<float>(deck, world(), true);
  EXPECT_GT(measured.flops_per_second, 1e6);
  EXPECT_EQ(measured.source, "measured at start");
}

TEST(Calibrate, PositiveAndTheSameEverywhere) {
  for (const std::string& yaml : {test::small_transformer(), test::dyadic_mlp(), test::dyadic_embedding(true)}) {
    const Deck deck = test::deck_of(yaml, {"batch.global=12", "batch.micro_batches=1"}, world().size());
    for (const double rate : {measure_ceiling<double>(deck, world()), measure_ceiling<float>(deck, world())}) {
      double largest = rate;
      all_reduce_max<double>(world(), {&largest, 1}, Phase::control);
      EXPECT_EQ(rate, largest);
      EXPECT_GT(rate, 1e6);
    }
  }
}

// 60 s, a save of 5 s, steps of 1 s: the last save starts 9.5 s before the end.
TEST(StopRequest, P53TimeRunsOutBeforeTheEnd) {
  const auto seconds_left = [](double seconds) {
    StopRequest stop(world(), testing::TempDir(), {now_ns() + static_cast<std::int64_t>(seconds * 1e9), 60, "a limit"});
    stop.took_step(1);
    stop.took_step(0.5);
    stop.took_save(5);
    EXPECT_EQ(stop.seconds_kept(), 9.5);
    const bool stops = stop.agreed();
    EXPECT_EQ(stop.reason(), stops ? "the time limit (a limit)" : "");
    return stops;
  };
  EXPECT_FALSE(seconds_left(12));
  EXPECT_TRUE(seconds_left(9.4));
  // Before the first save: a tenth of the session is kept for it, 5 minutes at most.
  EXPECT_EQ(StopRequest(world(), "", {now_ns(), 60, ""}).seconds_kept(), 9);
  EXPECT_EQ(StopRequest(world(), "", {now_ns(), 86400, ""}).seconds_kept(), 450);
}

// The earlier of the deck's limit and Slurm's end counts.
TEST(StopRequest, P53DeckAndSlurm) {
  const std::int64_t now = now_ns();
  EXPECT_EQ(session_end(0, now).at_ns, 0);
  EXPECT_EQ(session_end(100, now).at_ns, now + 100'000'000'000);
  setenv("SLURM_JOB_END_TIME", std::to_string(std::time(nullptr) + 50).c_str(), 1);
  EXPECT_EQ(session_end(20, now).who, "run.time_limit");
  const SessionEnd slurm = session_end(100, now);
  EXPECT_NEAR(static_cast<double>(slurm.at_ns - now) * 1e-9, 50, 2);
  EXPECT_NE(slurm.who.find("SLURM_JOB_END_TIME"), std::string::npos);
  setenv("SLURM_JOB_END_TIME", "soon", 1);
  EXPECT_EQ(session_end(0, now).at_ns, 0);
  unsetenv("SLURM_JOB_END_TIME");
}

// What a rank sees between agreements is agreed on later, also where it is gone by then.
TEST(StopRequest, P52ALookIsRemembered) {
  const std::string folder = testing::TempDir() + "/fourfold_stop_" + std::to_string(world().size());
  if (world().rank() == 0) {
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/STOP") << "\n";
  }
  barrier(world(), Phase::control);
  StopRequest stop(world(), folder);
  EXPECT_EQ(stop.look(), world().rank() == 0);
  EXPECT_FALSE(stop.look());
  stop.clear_file();
  EXPECT_TRUE(stop.agreed());
  EXPECT_EQ(stop.reason(), "the file " + folder + "/STOP");
}

TEST(WatchLimits, ByPhase) {
  const WatchdogDeck limits{.start = 1, .step = 2, .evaluation = 3, .checkpoint = 4};
  EXPECT_EQ(limit_of(limits, "start"), 1);
  EXPECT_EQ(limit_of(limits, "restart"), 1);
  EXPECT_EQ(limit_of(limits, "backward"), 2);
  EXPECT_EQ(limit_of(limits, "evaluation"), 3);
  EXPECT_EQ(limit_of(limits, "generation"), 3);
  EXPECT_EQ(limit_of(limits, "checkpoint"), 4);
}

TEST(Console, Formats) {
  EXPECT_EQ(format_duration(0.42), "0.4s");
  EXPECT_EQ(format_duration(59.4), "59s");
  EXPECT_EQ(format_duration(59.6), "1m00s");
  EXPECT_EQ(format_duration(3661), "1h01m");
  EXPECT_EQ(format_count(12), "12 ");
  EXPECT_EQ(format_count(3400), "3.4 k");
  EXPECT_EQ(format_count(2.5e9), "2.5 G");
  EXPECT_EQ(format_thousands(7), "7");
  EXPECT_EQ(format_thousands(123), "123");
  EXPECT_EQ(format_thousands(1234), "1,234");
  EXPECT_EQ(format_thousands(1234567), "1,234,567");
  EXPECT_EQ(format_thousands(-1234), "-1,234");
  EXPECT_EQ(format_thousands(-123), "-123");
}

}  // namespace
}  // namespace fourfold
