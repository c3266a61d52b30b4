// What layers do with their activations (parallel.activations) changes memory and work, and no bit: recompute, of whole
// layers and of sublayers, and offload, under every schedule. One launch of 8 ranks loops over all; FOURFOLD_FULL=1
// runs every case.
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/resource.h>
#include <sys/vfs.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/trace.hpp"
#include "comm/agree.hpp"
#include "comm/collectives.hpp"
#include "comm/launch.hpp"
#include "comm/ledger.hpp"
#include "grid/factorisation.hpp"
#include "model/precision.hpp"
#include "mpi_test.hpp"
#include "runs.hpp"
#include "tensor/offload.hpp"
#include "test_support.hpp"
#include "train/evaluate.hpp"
#include "train/restart.hpp"

namespace fourfold {
namespace {

using Texts = std::vector<std::string>;

const Communicator& world() {
  return test::launch().world();
}

std::string stack() {
  return R"(
run: {name: stack, steps: 12, seed: 3}
model: {kind: residual, layers: 6, hidden: 10, ffn: {hidden: 14}, activation: gelu, loss: squared_error,
        init: {std: 0.3}}
data: {kind: synthetic, synthetic: dyadic, samples: 240, valid_samples: 17}
batch: {global: 48, micro_batches: 1}
optimizer: {kind: adamw, lr: 0.01, clip: 1.0}
precision: {compute: fp64}
numerics: {deterministic: true}
)";
}

struct Model {
  std::string yaml;
  Texts overrides;
  std::vector<Texts> flags;  // of parallel.activations
};

std::vector<Model> models() {
  const std::vector<Texts> of_layers = {{"default=recompute"},
                                        {"recompute=[0,2-3]"},
                                        {"default=offload"},
                                        {"default=recompute", "keep=[1]", "offload=[2-3]"}};
  std::vector<Texts> of_blocks = of_layers;
  of_blocks.insert(of_blocks.end(), {{"recompute=[0-3,head]"},
                                     {"sublayers=[attention]"},
                                     {"sublayers=[ffn]", "offload=[1,head]"},
                                     {"sublayers=[attention,ffn]", "recompute=[1]", "offload=[2]"}});
  const std::string four = "model.layers=4", tied = "model.tie_embeddings=true";
  return {{test::small_transformer(), {four}, of_blocks},
          {test::small_transformer(), {four, tied, "parallel.sequence_shard=true", "attention.split=col"}, of_blocks},
          {test::small_transformer(), {four, "parallel.depth_splits=sequence", "model.norm=layer"}, of_blocks},
          {test::small_transformer(),
           {four, "precision.compute=fp32", "optimizer.shard=data", "optimizer.gather=lazy", "model.bias=all"},
           of_blocks},
          {test::small_transformer(), {four, "precision.compute=bf16", "model.ffn.kind=gelu"}, of_blocks},
          {test::small_transformer(), {four, "parallel.overlap=false", "model.positions=learned"}, of_blocks},
          {stack(), {}, of_layers},
          {stack(), {"precision.compute=bf16"}, of_layers},
          {test::dyadic_mlp(), {"model.widths=[12,20,16,10,6]"}, of_layers}};
}

struct Case {
  std::string builder;
  int stages, micro_batches, interleave;
  DenseShape grid;
  const Model* model;
  Texts flags;
  std::vector<DenseShape> widths = {};  // of each stage, in place of `grid`
};

int ranks_of(const Case& c) {
  int ranks = 0;
  for (const DenseShape& grid : c.widths) ranks += static_cast<int>(grid.size());
  return ranks > 0 ? ranks : c.stages * static_cast<int>(c.grid.size());
}

Texts overrides(const Case& c, bool flags = true) {
  Texts list = c.model->overrides;
  const auto add = [&](const std::string& key, const std::string& value) { list.push_back(key + "=" + value); };
  add("parallel.schedule", c.builder);
  add("parallel.interleave", std::to_string(c.interleave));
  add("batch.micro_batches", std::to_string(c.micro_batches));
  const auto text = [](const DenseShape& grid) {
    return "{data: " + std::to_string(grid.data) + ", depth: " + std::to_string(grid.depth) +
           ", row: " + std::to_string(grid.row) + ", col: " + std::to_string(grid.col) + "}";
  };
  if (c.widths.empty()) {
    add("parallel.stages", std::to_string(c.stages));
    add("parallel.dense", text(c.grid));
  } else {
    std::string grids;
    for (const DenseShape& grid : c.widths) grids += (grids.empty() ? "" : ", ") + text(grid);
    add("parallel.stage_grids", "[" + grids + "]");
  }
  if (c.builder == "geo") {
    std::string extra;
    for (int boundary = 0; boundary + 1 < c.stages; ++boundary) extra += boundary > 0 ? ",0" : "1";
    add("parallel.extra_in_flight", "[" + extra + "]");
  }
  if (c.builder == "list") {
    const std::string all = "0-" + std::to_string(c.micro_batches - 1);
    std::string lists;
    for (int stage = 0; stage < c.stages; ++stage) {
      lists += (stage > 0 ? "," : "") + ("'F" + all + " I" + all + " W" + all + "'");
    }
    add("parallel.schedule_list", "[" + lists + "]");
  }
  for (const std::string& flag : flags ? c.flags : Texts{}) list.push_back("parallel.activations." + flag);
  return list;
}

std::string name(const Case& c) {
  std::string text = c.model->yaml.substr(0, 40);
  for (const std::string& entry : overrides(c)) text += " " + entry;
  return text;
}

// Of every model each builder with several stages and grids; the sets of flags in turn.
std::vector<Case> all_cases(const std::vector<Model>& models) {
  std::vector<Case> cases;
  std::size_t at = 0;
  for (const Model& model : models) {
    for (const std::string& builder : schedule_builders()) {
      for (const int stages : {1, 2, 4}) {
        if ((stages == 1 && builder == "geo") || (stages != 2 && builder == "interleaved")) continue;
        const int micro_batches = stages == 1 ? 3 : 4;
        const bool chunks = stages == 2 && (builder == "interleaved" || builder == "modular");
        for (const DenseShape& grid : dense_factorisations(8 / stages)) {
          if (grid.row > 2 || 48 % (micro_batches * grid.data * grid.depth) != 0 || ++at % 3 != 0) continue;
          cases.push_back(
              {builder, stages, micro_batches, chunks ? 2 : 1, grid, &model, model.flags[at / 3 % model.flags.size()]});
        }
      }
    }
  }
  return cases;
}

// Stages of unequal width, with each set of flags.
std::vector<Case> unequal_cases(const std::vector<Model>& models) {
  std::vector<Case> cases;
  for (const std::size_t of : {0, 1, 6}) {
    const Model& model = models[of];
    for (const Texts& flags : model.flags) {
      cases.push_back({"1f1b", 3, 4, 1, {}, &model, flags, {{3, 1, 1, 1}, {1, 3, 1, 1}, {1, 1, 2, 1}}});
      cases.push_back({"zero_bubble", 2, 3, 1, {}, &model, flags, {{2, 1, 2, 1}, {1, 2, 1, 2}}});
      cases.push_back({"gpipe", 3, 2, 1, {}, &model, flags, {{1, 1, 1, 2}, {5, 1, 1, 1}, {1, 1, 1, 1}}});
    }
  }
  return cases;
}

TEST(Activations, FlagsChangeNoBit) {
  if (world().size() != 8) GTEST_SKIP() << "NOT TESTED in this launch: the launch of 8 ranks runs it";
  const std::vector<Model> list = models();
  // Some of each model.
  for (const Model& model : list) {
    std::vector<Case> cases = all_cases(list);
    std::erase_if(cases, [&](const Case& c) { return c.model != &model; });
    std::mt19937_64 engine(test::seed() + static_cast<std::uint64_t>(&model - list.data()));
    std::shuffle(cases.begin(), cases.end(), engine);
    cases = test::sample(cases, 1);
    std::vector<Case> unequal = unequal_cases(list);
    std::erase_if(unequal, [&](const Case& c) { return c.model != &model; });
    if (!unequal.empty()) unequal = test::sample(unequal, 1);
    cases.insert(cases.end(), unequal.begin(), unequal.end());
    for (const Case& c : cases) {
      SCOPED_TRACE(name(c));
      test::on_ranks(ranks_of(c), [&](const Communicator& ranks) {
        const auto kept = test::run_steps(test::deck_of(model.yaml, overrides(c, false), ranks.size()), ranks, 2);
        const auto others = test::run_steps(test::deck_of(model.yaml, overrides(c), ranks.size()), ranks, 2);
        for (std::size_t i = 0; i < kept.size(); ++i) {
          SCOPED_TRACE("step " + std::to_string(i + 1));
          EXPECT_EQ(others[i].loss, kept[i].loss);
          EXPECT_EQ(others[i].grad_norm, kept[i].grad_norm);
          EXPECT_EQ(others[i].gradients, kept[i].gradients);
          EXPECT_EQ(others[i].weights, kept[i].weights);
        }
      });
      if (agree_any(world(), testing::Test::HasFailure())) return;
    }
  }
}

// --- memory ---

// Calls `at_end` whenever a recompute ends: what it made is there, what it needed meanwhile is not.
class RecomputeEnds {
 public:
  explicit RecomputeEnds(std::function<void()> at_end) : before_(region_hooks()) {
    state() = {std::move(at_end), {}};
    set_region_hooks({[](const std::string& scope) { state().scopes.push_back(scope); },
                      [] {
                        const bool ends = state().scopes.back().ends_with(" recompute");
                        state().scopes.pop_back();
                        if (ends) state().at_end();
                      }});
  }
  ~RecomputeEnds() { set_region_hooks(before_); }
  RecomputeEnds(const RecomputeEnds&) = delete;
  RecomputeEnds& operator=(const RecomputeEnds&) = delete;

 private:
  struct State {
    std::function<void()> at_end;
    std::vector<std::string> scopes;
  };
  static State& state() {
    static State state;
    return state;
  }
  RegionHooks before_;
};

template <class T>
void expect_told(const Case& c, const Communicator& ranks) {
  const Deck deck = test::deck_of(c.model->yaml, overrides(c), ranks.size());
  test::Training<T> run(deck, ranks);
  const MemoryLedger& memory = run.memory;
  const PipelinePlan& plan = run.trainer.pipeline();
  const Graph graph = describe(deck.model);
  const Deck own = deck_of_place(deck, run.comms.here());
  std::int64_t most = 0, before = 0, moved = 0;
  run.trainer.observe([&](const StageOperation& operation) {
    const std::int64_t now = memory.live(MemoryTag::activations);
    if (operation.kind == OperationKind::offload || operation.kind == OperationKind::load) {
      std::int64_t away = 0;
      const Range& units = plan.cuts[static_cast<std::size_t>(operation.chunk)];
      for (std::int64_t unit = units.begin; unit < units.end; ++unit) {
        if (plan.keeping[static_cast<std::size_t>(unit)] != Keeping::offload) continue;
        away += activation_bytes(own, run.comms.here(), unit, KeptFor::backward);
      }
      EXPECT_EQ(operation.kind == OperationKind::load ? now - before : before - now, away);
      moved += away;
    }
    if (is_compute(operation.kind) || operation.kind == OperationKind::load) most = std::max(most, now);
    before = now;
  });
  int again = 0;
  {
    const RecomputeEnds ends([&] {
      most = std::max(most, memory.live(MemoryTag::activations));
      ++again;
    });
    run.trainer.step();
  }
  const MemoryPerRank told = memory_of_rank(deck, plan, run.comms.here());
  EXPECT_EQ(most, told.activations);
  EXPECT_EQ(memory.live(MemoryTag::activations), 0);
  // Each as often as the list says.
  std::int64_t recomputes = 0;
  for (const Range& units : plan.part_of(run.comms.here().stage).chunks) {
    for (std::int64_t unit = units.begin; unit < units.end; ++unit) {
      recomputes += runs_again(deck, unit, plan.keeping[static_cast<std::size_t>(unit)]) ? c.micro_batches : 0;
    }
  }
  EXPECT_EQ(again, recomputes);
  const auto& operations = plan.schedule.list(run.comms.here().stage);
  EXPECT_EQ(moved > 0, std::any_of(operations.begin(), operations.end(),
                                   [](const StageOperation& o) { return o.kind == OperationKind::offload; }));
}

// The most that is there after an operation, or when something has run again, is what `check` says, byte for byte; what
// goes away and comes back is what was kept.
TEST(Activations, PeaksAreToldToTheByte) {
  if (world().size() != 8) GTEST_SKIP() << "NOT TESTED in this launch: the launch of 8 ranks runs it";
  std::vector<Model> list = models();
  for (Model& model : list) {
    if (model.yaml == test::small_transformer()) model.overrides.push_back("model.dropout=0");
  }
  std::vector<Case> cases = test::sample(all_cases(list), 6);
  for (const Case& c : test::sample(unequal_cases(list), 3)) cases.push_back(c);
  // The peak is where a layer has run again: in a whole backward, and in an input gradient by itself.
  for (const Model* model : {&list[0], &list[6]}) {
    cases.push_back({"list", 2, 3, 1, {1, 1, 2, 1}, model, {"default=recompute"}});
    cases.push_back({"gpipe", 2, 2, 1, {1, 1, 1, 2}, model, {"default=recompute"}});
  }
  cases.push_back({"zero_bubble", 2, 4, 1, {1, 2, 1, 1}, &list[1], {"sublayers=[attention,ffn]"}});
  for (const Case& c : cases) {
    SCOPED_TRACE(name(c));
    test::on_ranks(ranks_of(c), [&](const Communicator& ranks) {
      const Precision precision = test::deck_of(c.model->yaml, overrides(c), ranks.size()).precision;
      in_precision(precision, [&]<class T>() { expect_told<T>(c, ranks); });
    });
    if (agree_any(world(), testing::Test::HasFailure())) return;
  }
}

// On one rank of a gpipe with four micro-batches: figures that one can reckon with.
TEST(Activations, MemoryFalls) {
  if (world().size() != 8) GTEST_SKIP() << "NOT TESTED in this launch: the launch of 8 ranks runs it";
  const Communicator alone(world(), {world().rank()}, "alone");
  const auto peak = [&](const Texts& flags) {
    const Model model{stack(), {}, {}};
    const Deck deck = test::deck_of(stack(), overrides({"gpipe", 1, 4, 1, {}, &model, flags}), 1);
    return memory_per_rank(deck, plan_pipeline(deck)).activations;
  };
  // 12 samples; a block keeps its input (10; the first reads its batch) and twice the inner 14; the last its outputs.
  const std::int64_t input = 8 * 12 * 10, inner = 8 * 12 * 28;
  EXPECT_EQ(peak({}), 4 * (5 * input + 6 * inner + input));
  // Four times the inputs; the gradient of the output while a block in front is run again.
  EXPECT_EQ(peak({"default=recompute"}), 4 * 5 * input + inner + input);
  // One set comes back while another's backward runs.
  EXPECT_EQ(peak({"default=offload"}), 2 * (5 * input + 6 * inner + input));
}

// Blocks come from the pool after two steps, files and all.
TEST(Activations, SteadyStepsAllocateNothing) {
  if (world().size() != 8) GTEST_SKIP() << "NOT TESTED in this launch: the launch of 8 ranks runs it";
  const std::vector<Model> list = models();
  for (const Texts& flags : {Texts{"default=offload"}, Texts{"default=recompute", "offload=[1]"}}) {
    const Case c{"1f1b", 2, 4, 1, {1, 2, 1, 1}, &list[0], flags};
    test::on_ranks(ranks_of(c), [&](const Communicator& ranks) {
      test::Training<> run(test::deck_of(c.model->yaml, overrides(c), ranks.size()), ranks);
      for (int step = 0; step < 2; ++step) run.trainer.step();
      const std::int64_t allocations = run.pool.allocations(), buffers = run.memory.live(MemoryTag::buffers);
      for (int step = 0; step < 3; ++step) run.trainer.step();
      EXPECT_EQ(run.pool.allocations(), allocations);
      EXPECT_EQ(run.memory.live(MemoryTag::buffers), buffers);
    });
  }
}

// --- work and communication ---

struct Counts {
  std::int64_t flops = 0, row_and_col = 0, gathers = 0, others = 0;
};

// Of one step, of all ranks.
Counts counts_of(const Case& c, const Communicator& ranks) {
  test::Training<> run(test::deck_of(c.model->yaml, overrides(c), ranks.size()), ranks);
  world().ledger().clear();
  const std::int64_t flops = run.comms.clock().flops();
  run.trainer.step();
  const CommLedger& ledger = world().ledger();
  const auto elements = [&](Operation operation, const char* axis, Phase phase) {
    return ledger.sum(operation, axis, phase).elements;
  };
  std::int64_t counts[] = {
      run.comms.clock().flops() - flops,
      elements(Operation::all_reduce, "row", Phase::forward) + elements(Operation::all_reduce, "col", Phase::forward),
      elements(Operation::all_gather, "depth", Phase::forward) +
          elements(Operation::all_gather, "depth", Phase::backward),
      elements(Operation::all_reduce, "row", Phase::backward) +
          elements(Operation::all_reduce, "col", Phase::backward) +
          elements(Operation::reduce_scatter, "depth", Phase::backward) +
          elements(Operation::all_reduce, "data", Phase::gradient)};
  all_reduce_sum<std::int64_t>(ranks, counts, Summation::fast, Phase::control);
  return {counts[0], counts[1], counts[2], counts[3]};
}

// All layers run again: forward's products and its sums over row and col once more, nothing else. Their weights are
// gathered over depth for the second forward and the backward together; the first matrix alone had no use on the way
// back.
TEST(Activations, RecomputeCostsAForward) {
  if (world().size() != 8) GTEST_SKIP() << "NOT TESTED in this launch: the launch of 8 ranks runs it";
  const std::vector<Model> list = models();
  constexpr int kMicroBatches = 3;
  for (const Model* model : {&list[6], &list[0]}) {
    const bool tokens = model == &list[0];
    const Texts flags{tokens ? "sublayers=[ffn]" : "default=recompute"};
    for (const char* builder : {"1f1b", "zero_bubble", "layered"}) {
      Case c{builder, 1, kMicroBatches, 1, {1, 2, 2, 2}, model, {}};
      c.micro_batches = kMicroBatches;
      const Counts kept = counts_of(c, world());
      c.flags = flags;
      const Counts again = counts_of(c, world());
      SCOPED_TRACE(name(c));
      const Deck deck = test::deck_of(c.model->yaml, overrides(c), world().size());
      const Graph graph = describe(deck.model);
      const PipelinePlan plan = plan_pipeline(deck);
      const std::int64_t flops =
          recomputed_work(deck, graph, plan, {0, static_cast<std::int64_t>(plan.units.size())}).total();
      EXPECT_GT(flops, 0);
      EXPECT_EQ(again.flops - kept.flops, flops * deck.batch.global * graph.tokens_per_sample);
      EXPECT_EQ(again.others, kept.others);
      if (tokens) {
        EXPECT_EQ(again.gathers, kept.gathers);
        EXPECT_GT(again.row_and_col, kept.row_and_col);
      } else {
        EXPECT_EQ(again.row_and_col, 2 * kept.row_and_col);
        EXPECT_GT(again.gathers, kept.gathers);
        EXPECT_LE(again.gathers - kept.gathers, kept.gathers / 12);
      }
      if (agree_any(world(), testing::Test::HasFailure())) return;
    }
  }
}

// --- files ---

std::string folder(const std::string& name) {
  return (std::filesystem::path(testing::TempDir()) / ("fourfold_activations_" + name)).string();
}

// An error of storage, the same on all ranks.
void expect_storage_error(const std::function<void()>& work, const Texts& words) {
  try {
    work();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.caller(), Caller::all_ranks);
    EXPECT_EQ(error.code(), ExitCode::storage);
    for (const std::string& word : words) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << word << " in: " << error.what();
    }
  }
}

Case offloading(const Model& model, const std::string& where) {
  return {"1f1b", 2, 4, 1, {2, 1, 2, 1}, &model, {"default=offload", "offload_folder=" + where}};
}

TEST(Activations, AFolderThatCannotBeUsed) {
  if (world().size() != 8) GTEST_SKIP() << "NOT TESTED in this launch: the launch of 8 ranks runs it";
  const std::vector<Model> list = models();
  const Case c = offloading(list[0], folder("that_is_not_there"));
  expect_storage_error(
      [&] { test::Training<> run(test::deck_of(c.model->yaml, overrides(c), world().size()), world()); },
      {"parallel.activations.offload_folder", "no file can be made in " + folder("that_is_not_there"),
       "No such file or directory"});
}

// One rank's disk is full: all ranks say so, and no weight has changed. Files have no name, so none is left.
TEST(Activations, AFullDiskIsOneError) {
  if (world().size() != 8) GTEST_SKIP() << "NOT TESTED in this launch: the launch of 8 ranks runs it";
  const std::vector<Model> list = models();
  const std::string where = folder("full");
  if (world().rank() == 0) std::filesystem::create_directories(where);
  barrier(world(), Phase::control);
  const Case c = offloading(list[0], where);
  test::Training<> run(test::deck_of(c.model->yaml, overrides(c), world().size()), world());
  const auto weights = [&] { return test::values_of(run.shards()); };
  const test::Tensors before = weights();
  EXPECT_TRUE(std::filesystem::is_empty(where));
  rlimit all{};
  getrlimit(RLIMIT_FSIZE, &all);
  if (world().rank() == 1) {
    const rlimit little{1000, all.rlim_max};
    setrlimit(RLIMIT_FSIZE, &little);
  }
  expect_storage_error([&] { run.trainer.step(); },
                       {"step 1: activations could not be offloaded (parallel.activations), no weight was changed",
                        "(rank 1): ", "bytes cannot be written to a file in " + where, "File too large"});
  setrlimit(RLIMIT_FSIZE, &all);
  EXPECT_EQ(weights(), before);
  EXPECT_EQ(run.trainer.steps_done(), 0);
  barrier(world(), Phase::control);
  if (world().rank() == 0) std::filesystem::remove_all(where);
}

// --- evaluation and restarts ---

TEST(Activations, EvaluationAndRestartsDoNotCare) {
  if (world().size() != 8) GTEST_SKIP() << "NOT TESTED in this launch: the launch of 8 ranks runs it";
  const std::vector<Model> list = models();
  const std::string where = folder("restart");
  if (world().rank() == 0) std::filesystem::remove_all(where);
  barrier(world(), Phase::control);
  test::on_ranks(4, [&](const Communicator& ranks) {
    Case c{"1f1b", 2, 4, 1, {1, 1, 2, 1}, &list[1], {"default=offload", "recompute=[1]"}};
    const auto deck = [&](bool flags) {
      Texts keys = overrides(c, flags);
      keys.push_back("run.folder=" + where);
      return test::deck_of(c.model->yaml, keys, ranks.size());
    };
    const auto loss_of = [](test::Training<>& run) {
      return evaluate(run.trainer.model(), run.trainer.pipeline(), run.loader, run.comms, run.pool, {})->loss;
    };
    double evaluated = 0;
    StepReport third;
    {
      test::Training<> run(deck(false), ranks);
      for (int step = 0; step < 2; ++step) run.trainer.step();
      evaluated = loss_of(run);
      third = run.trainer.step();
    }
    {
      test::Training<> run(deck(true), ranks);
      for (int step = 0; step < 2; ++step) run.trainer.step();
      EXPECT_EQ(loss_of(run), evaluated);
      prepare_folder(ranks, run.deck);
      save_checkpoint(ranks, run.deck, run.loader, run.shards(), {run.trainer.steps_done(), run.trainer.cursor()}, {},
                      {});
    }
    for (const Texts& flags : {Texts{}, Texts{"sublayers=[attention]", "recompute=[2,head]"}}) {
      c.flags = flags;
      test::Training<> run(deck(true), ranks);
      const checkpoint::Restart restart = checkpoint::load_newest(ranks, where + "/checkpoints", run.saved.shards());
      ASSERT_TRUE(restart.loaded);
      run.saved.to_device();
      run.trainer.resume(restart.loaded->state.integer("step"), restart.loaded->state.integer("cursor"));
      const StepReport report = run.trainer.step();
      EXPECT_EQ(report.loss, third.loss);
      EXPECT_EQ(report.grad_norm, third.grad_norm);
    }
  });
}

// --- the stores ---

// Tensors that share a block come back so; places are used again.
TEST(Activations, WhatIsAwayComesBack) {
  if (world().rank() != 0) return;
  const auto stores = {+[] { return make_file_store(testing::TempDir()); }, +[] { return make_host_store(); }};
  for (const auto store : stores) {
    MemoryLedger memory;
    Pool pool(memory);
    Offload offload(pool, store());
    for (int round = 0; round < 3; ++round) {
      Tensor<double> a(pool, MemoryTag::activations, 1000, 3), b = a;
      Tensor<float> none, c(pool, MemoryTag::activations, 7, 1);
      for (Index i = 0; i < a.size(); ++i) a.data()[i] = static_cast<double>(round * 10000 + i);
      for (Index i = 0; i < c.size(); ++i) c.data()[i] = static_cast<float>(i);
      HeldBlocks blocks;
      a.hold(blocks);
      c.hold(blocks);
      none.hold(blocks);
      b.hold(blocks);
      EXPECT_EQ(blocks.size(), 3u);
      Offload::Set set = offload.start(blocks);
      EXPECT_EQ(memory.live(MemoryTag::activations), 0);
      EXPECT_EQ(memory.live(MemoryTag::buffers), 24000 + 28);
      EXPECT_EQ(a.data(), nullptr);
      offload.settle();
      EXPECT_EQ(memory.live_total(), 0);
      offload.load(set);
      EXPECT_EQ(memory.live(MemoryTag::activations), 24000 + 28);
      offload.finish(set);
      EXPECT_EQ(a.data(), b.data());
      for (Index i = 0; i < a.size(); ++i) ASSERT_EQ(a.data()[i], static_cast<double>(round * 10000 + i));
      for (Index i = 0; i < c.size(); ++i) ASSERT_EQ(c.data()[i], static_cast<float>(i));
      EXPECT_EQ(offload.fault(), "");
    }
    EXPECT_LE(pool.allocations(), 4);
  }
}

// Files there take the memory that offloading is to free.
TEST(Activations, AFolderInMemoryIsNamed) {
  if (world().rank() != 0) return;
  const auto said = [](const std::string& folder) {
    testing::internal::CaptureStderr();
    make_file_store(folder);
    return testing::internal::GetCapturedStderr();
  };
  set_log_rank(0);
  struct statfs system {};
  if (statfs("/dev/shm", &system) != 0 || system.f_type != TMPFS_MAGIC) {
    GTEST_SKIP() << "NOT TESTED: a folder in memory; /dev/shm is none here";
  }
  EXPECT_NE(said("/dev/shm").find("offload_folder: /dev/shm is in memory itself"), std::string::npos);
  if (statfs(testing::TempDir().c_str(), &system) == 0 && system.f_type != TMPFS_MAGIC) {
    EXPECT_EQ(said(testing::TempDir()), "");
  }
}

}  // namespace
}  // namespace fourfold
