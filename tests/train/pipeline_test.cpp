// The stage axis: every schedule on any number of stages, micro-batches and grids trains as one rank does. One launch
// of 8 ranks loops over all; FOURFOLD_FULL=1 runs every case.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <tuple>

#include "comm/agree.hpp"
#include "comm/collectives.hpp"
#include "comm/launch.hpp"
#include "comm/ledger.hpp"
#include "comm/virtual_clock.hpp"
#include "grid/factorisation.hpp"
#include "like_serial.hpp"
#include "mpi_test.hpp"
#include "runs.hpp"
#include "schedule/checker.hpp"
#include "schedule/closed_forms.hpp"
#include "test_support.hpp"
#include "train/evaluate.hpp"
#include "train/restart.hpp"

namespace fourfold {
namespace {

const Communicator& world() {
  return test::launch().world();
}

using test::dyadic_stack;

struct Case {
  std::string builder = "1f1b";
  int stages = 1, micro_batches = 1, interleave = 1;
  DenseShape grid = {};
  std::vector<std::string> more = {};
};

std::string list_text(const std::vector<std::string>& entries) {
  std::string text = "[";
  for (const std::string& entry : entries) text += (text.size() > 1 ? ", " : "") + entry;
  return text + "]";
}

// By hand: all forwards, then the two halves of the backwards, chunk by chunk.
std::vector<std::string> lists_by_hand(const Case& c) {
  const std::string range = c.micro_batches > 1 ? "0-" + std::to_string(c.micro_batches - 1) : "0";
  std::string text;
  for (int v = 0; v < c.interleave; ++v) text += "F" + range + (c.interleave > 1 ? "." + std::to_string(v) : "") + " ";
  for (const char* half : {"I", "W"}) {
    for (int v = c.interleave; v-- > 0;) text += half + range + (c.interleave > 1 ? "." + std::to_string(v) : "") + " ";
  }
  text.pop_back();
  return std::vector<std::string>(static_cast<std::size_t>(c.stages), "'" + text + "'");
}

std::vector<std::string> overrides(const Case& c) {
  std::vector<std::string> list = {"parallel.schedule=" + c.builder,
                                   "parallel.stages=" + std::to_string(c.stages),
                                   "batch.micro_batches=" + std::to_string(c.micro_batches),
                                   "parallel.interleave=" + std::to_string(c.interleave),
                                   "parallel.dense.data=" + std::to_string(c.grid.data),
                                   "parallel.dense.depth=" + std::to_string(c.grid.depth),
                                   "parallel.dense.row=" + std::to_string(c.grid.row),
                                   "parallel.dense.col=" + std::to_string(c.grid.col)};
  const bool given = std::any_of(c.more.begin(), c.more.end(), [](const std::string& entry) {
    return entry.starts_with("parallel.extra_in_flight");
  });
  if (c.builder == "geo" && !given) {
    std::vector<std::string> extra;
    for (int boundary = 0; boundary + 1 < c.stages; ++boundary) extra.push_back(std::to_string((boundary + 1) % 3));
    list.push_back("parallel.extra_in_flight=" + list_text(extra));
  }
  if (c.builder == "list") list.push_back("parallel.schedule_list=" + list_text(lists_by_hand(c)));
  list.insert(list.end(), c.more.begin(), c.more.end());
  return list;
}

std::string name(const Case& c) {
  std::string text;
  for (const std::string& entry : overrides(c)) text += entry + " ";
  return text;
}

int ranks_of(const Case& c) {
  return c.stages * static_cast<int>(c.grid.size());
}

bool takes_chunks(const std::string& builder) {
  return builder == "interleaved" || builder == "modular" || builder == "list";
}

int fewest_chunks(const std::string& builder) {
  return builder == "interleaved" ? 2 : 1;
}

// Every builder, stages, micro-batches and interleave where legal.
std::vector<Case> all_cases(const std::vector<int>& micro_batches) {
  std::vector<Case> cases;
  for (const std::string& builder : schedule_builders()) {
    for (const int stages : {1, 2, 3, 4}) {
      for (const int m : micro_batches) {
        for (const int v : {1, 2}) {
          if (v == fewest_chunks(builder) || (v > 1 && takes_chunks(builder))) cases.push_back({builder, stages, m, v});
        }
      }
    }
  }
  return cases;
}

using test::expect_part;

void expect_like_serial(const std::string& yaml, const std::vector<Case>& cases, int steps, double tolerance) {
  std::vector<test::Variant> variants;
  for (const Case& c : cases) variants.push_back({overrides(c), ranks_of(c)});
  test::expect_like_serial(yaml, variants, steps, tolerance);
}

TEST(Pipeline, DyadicStackBitForBit) {
  expect_like_serial(dyadic_stack(), test::sample(all_cases({1, 2, 3, 5, 8}), 24), 4, 0);
}

// The stack moves: over 5 % of the weights change in every step.
TEST(Pipeline, DyadicStackMoves) {
  if (world().rank() != 0) return;
  const Communicator alone(world(), {0}, "alone");
  const auto records = test::run_steps(test::deck_of(dyadic_stack(), {}, 1), alone, 4);
  for (std::size_t i = 1; i < records.size(); ++i) {
    std::size_t changed = 0, all = 0;
    for (const auto& [tensor, values] : records[i].weights) {
      const auto& before = records[i - 1].weights.at(tensor);
      for (std::size_t k = 0; k < values.size(); ++k) changed += values[k] != before[k];
      all += values.size();
    }
    EXPECT_GE(static_cast<double>(changed), 0.05 * static_cast<double>(all)) << "step " << i + 1;
  }
}

std::vector<Case> with(std::vector<Case> cases, const std::vector<std::string>& more) {
  for (Case& c : cases) c.more.insert(c.more.end(), more.begin(), more.end());
  return cases;
}

// Dropout, KV heads, a schedule of the rate; the head apart, and tied to the embedding across stages.
TEST(Pipeline, TransformerTo1e11) {
  const std::string six = "model.layers=6";
  const std::vector<Case> untied = with(all_cases({1, 2, 3, 8}), {six});
  expect_like_serial(test::small_transformer(), test::sample(untied, 8), 3, 1e-11);
  std::vector<Case> tied = with(all_cases({2, 3}), {six, "model.tie_embeddings=true"});
  std::erase_if(tied, [](const Case& c) { return c.stages == 1; });
  expect_like_serial(test::small_transformer(), test::sample(tied, 6), 3, 1e-11);
}

// Plain nets are cut between matrices, whose widths and axes change from one to the next.
TEST(Pipeline, PlainNets) {
  std::vector<Case> cases;
  for (const std::string& builder : schedule_builders()) {
    const int v = fewest_chunks(builder);
    for (const int stages : {2, 3}) {
      if (stages * v <= 3) cases.push_back({builder, stages, 3, v});
    }
  }
  expect_like_serial(test::dyadic_mlp(), test::sample(cases, 5), 4, 0);
  for (const bool tied : {true, false}) {
    expect_like_serial(test::dyadic_embedding(tied), {{"zero_bubble", 2, 3, 1}, {"layered", 1, 2, 1}}, 4, 0);
  }
}

// All builders with the same chunks on the same stages add the same numbers in the same order.
TEST(Pipeline, BuildersAgreeBitForBit) {
  if (world().size() != 8) GTEST_SKIP() << "NOT TESTED in this launch: the launch of 8 ranks runs it";
  const DenseShape alone{}, two{2, 1, 1, 1}, rows{1, 1, 2, 1};
  const std::vector<std::tuple<int, int, DenseShape>> pipelines = {
      {3, 1, alone}, {2, 2, two}, {4, 1, rows}, {4, 1, two}};
  for (const auto& [stages, interleave, grid] : test::sample(pipelines, 2)) {
    std::vector<test::StepRecord> first;
    std::string first_name;
    for (const std::string& builder : schedule_builders()) {
      if (builder == "layered" || interleave < fewest_chunks(builder)) continue;
      if (interleave > 1 && !takes_chunks(builder)) continue;
      const Case c{builder, stages, 4, interleave, grid, {"model.layers=6", "model.tie_embeddings=true"}};
      SCOPED_TRACE(name(c));
      test::on_ranks(ranks_of(c), [&](const Communicator& ranks) {
        const auto records =
            test::run_steps(test::deck_of(test::small_transformer(), overrides(c), ranks.size()), ranks, 3);
        if (first.empty()) {
          first = records;
          return;
        }
        for (std::size_t i = 0; i < records.size(); ++i) {
          EXPECT_EQ(records[i].loss, first[i].loss);
          EXPECT_EQ(records[i].grad_norm, first[i].grad_norm);
          EXPECT_EQ(records[i].weights, first[i].weights);
        }
      });
      if (agree_any(world(), testing::Test::HasFailure())) return;
    }
  }
}

// The same micro-batches on one rank and in stages: the same products and sums, in every precision.
TEST(Pipeline, StagesChangeNoBit) {
  if (world().size() != 8) GTEST_SKIP() << "NOT TESTED in this launch: the launch of 8 ranks runs it";
  const Communicator alone(world(), {world().rank()}, "alone");
  for (const std::string precision : {"fp64", "fp32", "bf16"}) {
    const std::vector<std::string> more = {"precision.compute=" + precision, "model.layers=6"};
    std::vector<std::string> one = more;
    one.push_back("batch.micro_batches=4");
    const auto reference = test::run_steps(test::deck_of(test::small_transformer(), one, 1), alone, 3);
    for (const Case& c : std::vector<Case>{
             {"1f1b", 3, 4, 1, {}, more}, {"zero_bubble", 4, 4, 1, {}, more}, {"interleaved", 2, 4, 2, {}, more}}) {
      SCOPED_TRACE(name(c));
      test::on_ranks(ranks_of(c), [&](const Communicator& ranks) {
        test::Shards shards;
        const auto records =
            test::run_steps(test::deck_of(test::small_transformer(), overrides(c), ranks.size()), ranks, 3, &shards);
        for (std::size_t i = 0; i < records.size(); ++i) {
          EXPECT_EQ(records[i].loss, reference[i].loss);
          EXPECT_EQ(records[i].grad_norm, reference[i].grad_norm);
          expect_part(reference[i].weights, records[i].weights, shards, 0);
        }
      });
      if (agree_any(world(), testing::Test::HasFailure())) return;
    }
  }
}

// With data, depth, row and col beside the stages.
TEST(Pipeline, WithEveryOtherAxis) {
  const std::vector<std::vector<std::string>> variants = {{},
                                                          {"parallel.sequence_shard=true", "attention.split=col"},
                                                          {"optimizer.shard=data", "optimizer.gather=lazy"},
                                                          {"parallel.depth_splits=sequence"},
                                                          {"parallel.overlap=false", "model.tie_embeddings=true"},
                                                          {"optimizer.shard=data", "model.tie_embeddings=true"},
                                                          {"optimizer.kind=lamb", "model.tie_embeddings=true"}};
  std::vector<Case> cases;
  std::size_t at = 0;
  for (const int stages : {2, 4}) {
    for (const DenseShape& grid : dense_factorisations(8 / stages)) {
      if (grid.row > 2) continue;
      for (const std::string& builder : schedule_builders()) {
        const int v = takes_chunks(builder) && stages == 2 ? 2 : 1;
        if (v < fewest_chunks(builder)) continue;  // too few units
        std::vector<std::string> more = variants[at++ % variants.size()];
        more.push_back("model.layers=4");
        cases.push_back({builder, stages, 2 + static_cast<int>(at % 2), v, grid, more});
      }
    }
  }
  EXPECT_GE(cases.size(), 30u);
  expect_like_serial(test::small_transformer(), test::sample(cases, 7), 3, 1e-11);
  for (Case& c : cases) {
    std::erase_if(c.more, [](const std::string& entry) { return !entry.starts_with("optimizer.shard"); });
  }
  expect_like_serial(dyadic_stack(), test::sample(cases, 6), 3, 0);
}

// Trainer and observer on some ranks.
void run_observed(const Case& c, const std::string& yaml, int steps,
                  const std::function<void(test::Training<>&, const StageOperation&)>& observe,
                  const std::function<void(test::Training<>&)>& after = {}) {
  test::on_ranks(ranks_of(c), [&](const Communicator& ranks) {
    test::Training<> run(test::deck_of(yaml, overrides(c), ranks.size()), ranks);
    run.trainer.observe([&](const StageOperation& operation) { observe(run, operation); });
    for (int step = 0; step < steps; ++step) run.trainer.step();
    if (after) after(run);
  });
}

// No message counts on a buffer of MPI's, whoever is late.
TEST(Pipeline, SynchronousSendsAndSleepsFinish) {
  if (world().size() != 8) GTEST_SKIP() << "NOT TESTED in this launch: the launch of 8 ranks runs it";
  std::mt19937_64 engine(test::seed() + static_cast<std::uint64_t>(world().rank()));
  int operations = 0;
  for (Case c : test::sample(all_cases({1, 3, 8}), 6)) {
    c.more = {"debug.synchronous_sends=true"};
    SCOPED_TRACE(name(c));
    run_observed(c, dyadic_stack(), 2, [&](test::Training<>&, const StageOperation&) {
      std::this_thread::sleep_for(std::chrono::microseconds(engine() % 400));
      ++operations;
    });
  }
  if (world().rank() == 0) {
    EXPECT_GT(operations, 0);
  }
}

// What waits for a backward is what `check` says, byte for byte, after every operation.
TEST(Pipeline, ActivationsAreToldToTheByte) {
  if (world().size() != 8) GTEST_SKIP() << "NOT TESTED in this launch: the launch of 8 ranks runs it";
  std::vector<Case> cases = {{"gpipe", 4, 4, 1, {1, 1, 2, 1}},
                             {"1f1b", 4, 6, 1, {1, 1, 1, 2}},
                             {"geo", 3, 8, 1},
                             {"interleaved", 2, 6, 2, {1, 2, 1, 1}},
                             {"modular", 2, 3, 2, {1, 2, 2, 1}},
                             {"layered", 3, 2, 1, {1, 2, 1, 1}},
                             {"layered", 1, 3, 1},
                             {"zero_bubble", 4, 6, 1, {1, 1, 2, 1}},
                             {"zero_bubble", 3, 4, 1, {1, 2, 1, 1}},
                             {"list", 2, 3, 2, {1, 1, 1, 2}}};
  for (Case& c : cases) c.more = {"model.layers=6", "model.tie_embeddings=true", "model.dropout=0"};
  for (const std::string& yaml : {test::small_transformer(), dyadic_stack()}) {
    for (Case c : cases) {
      if (yaml == dyadic_stack()) c.more.clear();
      SCOPED_TRACE(name(c));
      std::int64_t most = 0;
      run_observed(
          c, yaml, 1,
          [&](test::Training<>& run, const StageOperation& operation) {
            if (is_compute(operation.kind)) most = std::max(most, run.memory.live(MemoryTag::activations));
          },
          [&](test::Training<>& run) {
            const MemoryPerRank told = memory_of_rank(run.deck, run.trainer.pipeline(), run.comms.here());
            EXPECT_EQ(most, told.activations);
            EXPECT_EQ(run.memory.live(MemoryTag::activations), 0);
            EXPECT_EQ(run.memory.live(MemoryTag::parameters), told.parameters);
            EXPECT_EQ(run.memory.live(MemoryTag::gradients), told.gradients);
            EXPECT_EQ(run.memory.live(MemoryTag::optimizer), told.optimizer);
          });
      if (agree_any(world(), testing::Test::HasFailure())) return;
    }
  }
}

// Weights are gathered over depth, and gradients scattered, as often as the list says: layered accumulation 2 L times a
// step instead of 2 L M.
TEST(Pipeline, GathersAndScattersAsOftenAsTheListSays) {
  if (world().size() != 8) GTEST_SKIP() << "NOT TESTED in this launch: the launch of 8 ranks runs it";
  constexpr std::int64_t kLayers = 8, kMicroBatches = 3;
  for (const std::string& builder : schedule_builders()) {
    const Case c{builder, 2, kMicroBatches, fewest_chunks(builder), {1, 2, 1, 1}};
    SCOPED_TRACE(name(c));
    world().ledger().clear();
    run_observed(
        c, dyadic_stack(), 1, [](test::Training<>&, const StageOperation&) {},
        [&](test::Training<>& run) {
          const CommLedger& ledger = world().ledger();
          std::array<std::int64_t, 2> calls{ledger.sum(Operation::all_gather, "depth", Phase::forward).calls +
                                                ledger.sum(Operation::all_gather, "depth", Phase::backward).calls,
                                            ledger.sum(Operation::reduce_scatter, "depth", Phase::backward).calls};
          all_reduce_sum<std::int64_t>(run.comms.world(), calls, Summation::fast, Phase::control);
          std::vector<std::int64_t> layers;
          for (const Range& units : run.trainer.pipeline().cuts) layers.push_back(units.size());
          const ScheduleCounts told = count(run.trainer.pipeline().schedule, layers);
          // Two matrices a layer, on both ranks of depth; the very first has no input gradient.
          const bool once = builder == "layered" || builder == "modular";
          EXPECT_EQ(calls[0], 2 * (2 * told.gathers - (once ? 1 : kMicroBatches)));
          EXPECT_EQ(calls[1], 2 * 2 * told.reduce_scatters);
          EXPECT_EQ(told.gathers, 2 * kLayers * (once ? 1 : kMicroBatches));
          EXPECT_EQ(told.reduce_scatters, kLayers * (once ? 1 : kMicroBatches));
        });
    if (agree_any(world(), testing::Test::HasFailure())) return;
  }
}

// --- evaluation and restarts ---

EvalReport evaluation(const Case& c, const std::string& yaml, const Communicator& ranks) {
  const Deck deck = test::deck_of(yaml, overrides(c), ranks.size());
  const GridComms comms = test::grid_comms(deck, ranks);
  const Loader loader(deck);
  MemoryLedger memory;
  Pool pool(memory);
  const PipelinePlan plan = plan_pipeline(deck);
  Model<double> model(deck, comms, pool, plan.part_of(comms.here().stage));
  return *evaluate(model, plan, loader, comms, pool, {});
}

// 29 samples: ragged batches, waves that are not full.
TEST(Pipeline, EvaluationThroughStages) {
  if (world().size() != 8) GTEST_SKIP() << "NOT TESTED in this launch: the launch of 8 ranks runs it";
  const Communicator alone(world(), {world().rank()}, "alone");
  const std::vector<std::string> model = {"model.layers=4", "batch.global=12"};
  const EvalReport one = evaluation({"1f1b", 1, 1, 1, {}, model}, test::small_transformer(), alone);
  for (const Case& c : std::vector<Case>{{"1f1b", 3, 2, 1, {}, model},
                                         {"interleaved", 2, 3, 2, {2, 1, 2, 1}, model},
                                         {"layered", 4, 1, 1, {1, 2, 1, 1}, model}}) {
    SCOPED_TRACE(name(c));
    test::on_ranks(ranks_of(c), [&](const Communicator& ranks) {
      const EvalReport report = evaluation(c, test::small_transformer(), ranks);
      EXPECT_EQ(report.samples, 29);
      EXPECT_EQ(report.targets, one.targets);
      EXPECT_NEAR(report.loss, one.loss, 1e-12 * one.loss);
    });
  }
}

std::string folder(std::size_t number) {
  return (std::filesystem::path(testing::TempDir()) / ("fourfold_pipeline_" + std::to_string(number))).string();
}

// Any pipeline goes on from what any other saved, tied embeddings included.
TEST(Pipeline, RestartOnAnyOther) {
  if (world().size() != 8) GTEST_SKIP() << "NOT TESTED in this launch: the launch of 8 ranks runs it";
  const std::vector<std::string> model = {"model.layers=4", "model.tie_embeddings=true"};
  const std::vector<Case> cases = {{"1f1b", 1, 1, 1, {}, model},
                                   {"1f1b", 3, 4, 1, {}, model},
                                   {"zero_bubble", 2, 2, 1, {2, 1, 2, 1}, model},
                                   {"interleaved", 2, 3, 2, {1, 2, 1, 1}, model},
                                   {"layered", 4, 2, 1, {1, 1, 1, 2}, model},
                                   {"gpipe", 2, 2, 1, {2, 1, 1, 1}, {model[0], model[1], "optimizer.shard=data"}}};
  std::vector<std::pair<std::size_t, std::size_t>> pairs;
  for (std::size_t from = 0; from < cases.size(); ++from) {
    for (std::size_t to = 0; to < cases.size(); ++to) pairs.emplace_back(from, to);
  }
  const Communicator alone(world(), {world().rank()}, "alone");
  const auto serial = test::run_steps(test::deck_of(test::small_transformer(), model, 1), alone, 3);
  std::set<std::size_t> written;
  for (const auto& [from, to] : test::sample(pairs, 3)) {
    SCOPED_TRACE(name(cases[from]) + " to " + name(cases[to]));
    if (written.insert(from).second) {
      if (world().rank() == 0) std::filesystem::remove_all(folder(from));
      barrier(world(), Phase::control);
      test::on_ranks(ranks_of(cases[from]), [&](const Communicator& ranks) {
        std::vector<std::string> list = overrides(cases[from]);
        list.push_back("run.folder=" + folder(from));
        test::Training<> run(test::deck_of(test::small_transformer(), list, ranks.size()), ranks);
        for (int step = 0; step < 2; ++step) run.trainer.step();
        prepare_folder(ranks, run.deck);
        save_checkpoint(ranks, run.deck, run.loader, run.shards(), {run.trainer.steps_done(), run.trainer.cursor()}, {},
                        {});
      });
    }
    test::on_ranks(ranks_of(cases[to]), [&](const Communicator& ranks) {
      test::Training<> run(test::deck_of(test::small_transformer(), overrides(cases[to]), ranks.size()), ranks);
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

// --- the virtual clock ---

// When the last stage's list has ended on the virtual machine. tF, tI, tW in microseconds.
Picoseconds makespan(const Case& c, const std::array<int, 3>& times, const Machine& machine) {
  Case timed = c;
  std::string list = "emulate.stage_times=[";
  for (const int time : times) list += std::to_string(time) + "000000,";
  list.back() = ']';
  timed.more.push_back(list);
  Picoseconds last = 0;
  test::launch().emulate(machine);
  run_observed(timed, dyadic_stack(), 1, [&](test::Training<>& run, const StageOperation& operation) {
    if (operation.kind == OperationKind::step) last = run.comms.clock().now();
  });
  all_reduce_max<std::int64_t>(world(), {&last, 1}, Phase::control);
  return last;
}

constexpr Picoseconds kTick = 1'000'000;

TEST(Pipeline, MakespansAreTheClosedForms) {
  if (world().size() != 8) GTEST_SKIP() << "NOT TESTED in this launch: the launch of 8 ranks runs it";
  const Machine machine = free_machine(8);
  for (const std::array<int, 3>& times : {std::array{1, 1, 1}, std::array{3, 4, 2}, std::array{2, 1, 5}}) {
    const PassTimes pass{times[0] * kTick, times[1] * kTick, times[2] * kTick};
    for (const auto& [stages, m] : {std::pair{2, 3}, std::pair{4, 8}, std::pair{4, 5}, std::pair{3, 1}}) {
      EXPECT_EQ(makespan({"gpipe", stages, m}, times, machine), pipeline_makespan(stages, m, pass));
      EXPECT_EQ(makespan({"1f1b", stages, m}, times, machine), pipeline_makespan(stages, m, pass));
      if (m >= stages) {
        EXPECT_EQ(makespan({"zero_bubble", stages, m}, times, machine), zero_bubble_makespan(stages, m, pass));
        EXPECT_EQ(makespan({"modular", stages, m, 2}, times, machine), interleaved_makespan(stages, 2, m, pass));
      }
    }
  }
}

// P = 4, M = 16, tF = 1, tB = 2, latency d on the middle link: 57 + 16 d, and 57 + 2 d with geo.
TEST(Pipeline, LatencyOfTheMiddleLink) {
  if (world().size() != 8) GTEST_SKIP() << "NOT TESTED in this launch: the launch of 8 ranks runs it";
  for (const int d : {1, 3, 4}) {
    Machine machine = free_machine(2);
    machine.nodes = 4;
    machine.between.latency = d * kTick;
    const std::vector<std::string> batch = {"batch.global=48", "data.samples=96"};
    EXPECT_EQ(makespan({"1f1b", 4, 16, 1, {}, batch}, {1, 1, 1}, machine), (57 + 16 * d) * kTick);
    Case geo{"geo", 4, 16, 1, {}, batch};
    geo.more.push_back("parallel.extra_in_flight=[0," + std::to_string((2 * d + 2) / 3) + ",0]");
    EXPECT_EQ(makespan(geo, {1, 1, 1}, machine), (57 + 2 * d) * kTick);
  }
}

}  // namespace
}  // namespace fourfold
