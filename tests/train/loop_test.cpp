// The loop: restart bit for bit, on other rank counts, what metrics.jsonl holds, early stops, refusals.
#include "train/loop.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/timer.hpp"
#include "comm/agree.hpp"
#include "comm/collectives.hpp"
#include "comm/launch.hpp"
#include "comm/ledger.hpp"
#include "model/describe.hpp"
#include "mpi_test.hpp"
#include "runs.hpp"
#include "train/restart.hpp"

namespace fourfold {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

const Communicator& world() {
  return test::launch().world();
}

// A new folder for all ranks, removed at the end.
class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "fourfold_loop_XXXXXX").string();
    if (world().rank() == 0 && mkdtemp(pattern.data()) == nullptr) pattern.clear();
    path_ = broadcast_string(world(), pattern);
  }
  ~Folder() {
    barrier(world(), Phase::control);
    std::error_code ignored;
    if (world().rank() == 0) fs::remove_all(path_, ignored);
  }
  std::string path() const { return path_; }
  std::string run() const { return path_ + "/run"; }
  // What the run left goes out of the way, under another name.
  std::string put_aside(const std::string& name) const {
    barrier(world(), Phase::control);
    if (world().rank() == 0) fs::rename(run(), path_ + "/" + name);
    barrier(world(), Phase::control);
    return path_ + "/" + name;
  }

 private:
  std::string path_;
};

std::vector<std::string> overrides(const Folder& folder, std::vector<std::string> more = {}) {
  more.insert(more.end(), {"run.folder=" + folder.run(), "run.steps=10", "eval.every=4", "checkpoint.every=3"});
  return more;
}

ExitCode run_train(const Deck& deck, const Communicator& ranks, const TrainOptions& options) {
  const GridComms comms = test::grid_comms(deck, ranks);
  MemoryLedger ledger;
  Pool pool(ledger);
  return train<double>(deck, comms, pool, options);
}

TrainOptions until(std::int64_t step) {
  TrainOptions options;
  options.stop_at_step = step;
  options.version = "test";
  return options;
}

std::string bytes_of(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  EXPECT_TRUE(stream) << file;
  return std::string(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
}

std::vector<Json> all_lines_of(const std::string& folder) {
  std::vector<Json> lines;
  std::ifstream stream(folder + "/metrics.jsonl");
  for (std::string line; std::getline(stream, line);) lines.push_back(Json::parse(line));
  return lines;
}

// The first line of an event; null: none.
Json of_event(const std::vector<Json>& lines, const std::string& event) {
  for (const Json& line : lines) {
    if (line.value("event", "") == event) return line;
  }
  return {};
}

// Without what is about a session, not about the run.
std::vector<Json> lines_of(const std::string& folder) {
  std::vector<Json> lines = all_lines_of(folder);
  std::erase_if(lines, [](const Json& line) {
    const std::string event = line.value("event", "");
    return event == "communication" || event == "phases" || event == "flops" || event == "ranks" ||
           event == "checkpoint";
  });
  return lines;
}

// Last line of each step and evaluation, without what a clock says.
std::map<std::string, Json> timeless(const std::vector<Json>& lines) {
  std::map<std::string, Json> result;
  for (Json line : lines) {
    for (const char* key : {"seconds", "tokens_per_second", "model_flops_per_second"}) line.erase(key);
    if (line.value("event", "") == "restart") continue;
    result[line.value("event", "step") + std::to_string(line["step"].get<int>())] = line;
  }
  return result;
}

// Weights and moments of the newest checkpoint, by name; on every rank of `ranks`.
test::Tensors newest_tensors(const Deck& deck, const Communicator& ranks) {
  const test::Training<> run(deck, ranks);
  EXPECT_TRUE(checkpoint::load_newest(ranks, checkpoint_folder(deck), run.saved.shards()).loaded);
  return test::values_of(run.saved.shards());
}

TEST(Loop, P11TenStepsAreFiveRestartFiveBitForBit) {
  const Folder folder;
  const Deck deck = test::deck_of(test::small_transformer(), overrides(folder), world().size());
  EXPECT_EQ(run_train(deck, world(), until(0)), ExitCode::done);
  const std::string unbroken = folder.put_aside("unbroken");
  EXPECT_EQ(run_train(deck, world(), until(5)), ExitCode::again);
  EXPECT_EQ(run_train(deck, world(), until(0)), ExitCode::done);
  if (world().rank() != 0) return;
  const std::string file = "/checkpoints/step_00000010.h5";
  EXPECT_EQ(bytes_of(unbroken + file), bytes_of(folder.run() + file));
  EXPECT_EQ(timeless(lines_of(unbroken)), timeless(lines_of(folder.run())));

  // And what the lines are.
  const std::vector<Json> lines = lines_of(folder.run());
  ASSERT_EQ(lines.size(), 10u + 3 + 1);  // evaluations at 4, 8 and the end; one restart
  EXPECT_EQ(lines[6], (Json{{"event", "restart"}, {"step", 5}}));
  for (const Json& line : lines) {
    if (line.contains("event")) continue;
    for (const char* key :
         {"step", "loss", "grad_norm", "lr", "tokens", "seconds", "tokens_per_second", "model_flops_per_second"}) {
      EXPECT_TRUE(line.contains(key)) << key;
    }
    EXPECT_EQ(line["tokens"], 48 * 8);
    EXPECT_NEAR(line["tokens_per_second"].get<double>() * line["seconds"].get<double>(), 48 * 8, 1e-6);
  }
}

// What a session says of its speed at its end, and of each step where there is a ceiling.
TEST(Loop, MetricsSayWhatTheCeilingIsAndWhatWasComputed) {
  const Folder folder;
  Deck deck = test::deck_of(test::small_transformer(), overrides(folder), world().size());
  int runs = 0;
  const auto lines_after = [&](const TrainOptions& options) {
    EXPECT_EQ(run_train(deck, world(), options), ExitCode::done);
    std::vector<Json> lines = all_lines_of(folder.run());
    folder.put_aside("run" + std::to_string(++runs));
    return lines;
  };
  const auto expect = [&](const std::vector<Json>& lines, bool known, double ceiling) {
    if (world().rank() != 0) return;
    for (const Json& line : lines) {
      if (line.contains("event")) continue;
      ASSERT_EQ(line.contains("utilisation"), known);
      if (!known) continue;
      const double rate = line["model_flops_per_second"];
      const double share = line["utilisation"];
      EXPECT_GT(share, 0);
      EXPECT_TRUE(ceiling == 0 || std::abs(share * ceiling / rate - 1) < 1e-12) << share;
    }
    const Json flops = of_event(lines, "flops");
    const auto model = static_cast<double>(describe(deck.model).training_flops());
    EXPECT_EQ(flops.value("model_per_token", 0.0), model);
    // Attention's pairs below and on the diagonal, scores twice: 14 d x 36 pairs for 6 d x 8 x 8 of the model.
    const double attention = 2.0 * 16 * (14.0 * 36 / 8 - 6 * 8);
    EXPECT_DOUBLE_EQ(flops.value("computed_per_token", 0.0), model + attention);
  };
  expect(lines_after(until(0)), false, 0);
  TrainOptions measures = until(0);
  measures.calibrate = true;
  expect(lines_after(measures), true, 0);
  deck.run.machine = "m.yaml";
  deck.run.description.emplace().fp64 = 1'000'000'007;
  expect(lines_after(until(0)), true, 1'000'000'007.0 * world().size());
}

// A run that ends on values that are not finite says where the time went all the same.
TEST(Loop, P62ARunThatIsNotFiniteLeavesItsReports) {
  const Folder folder;
  const Deck deck = test::deck_of(
      test::small_transformer(),
      overrides(folder, {"optimizer.lr=1e300", "optimizer.schedule.kind=constant", "run.trace=true"}), world().size());
  try {
    run_train(deck, world(), until(0));
    FAIL() << "not finite";
  } catch (const Error& error) {
    EXPECT_EQ(error.caller(), Caller::all_ranks);
    EXPECT_NE(std::string(error.what()).find("not finite"), std::string::npos) << error.what();
  }
  if (world().rank() != 0) return;
  const std::vector<Json> lines = all_lines_of(folder.run());
  EXPECT_GT(of_event(lines, "phases").value("seconds", 0.0), 0);
  EXPECT_FALSE(of_event(lines, "flops").is_null());
  EXPECT_TRUE(Json::parse(bytes_of(folder.run() + "/trace.json")).is_object() ||
              Json::parse(bytes_of(folder.run() + "/trace.json")).is_array());
  EXPECT_FALSE(fs::exists(folder.run() + "/checkpoints/step_00000001.h5"));
}

// Values that are still on their way when an evaluation, a checkpoint or the end of the run reads them: losses,
// evaluations, weights and moments are the eager run's, also over a restart.
TEST(Loop, LazyGatherGivesTheEagerRunBitForBit) {
  const Folder folder;
  const auto deck = [&](const std::string& gather) {
    return test::deck_of(test::small_transformer(),
                         {"run.folder=" + folder.run(), "run.steps=6", "eval.every=1", "checkpoint.every=2",
                          "optimizer.shard=data", "optimizer.gather=" + gather},
                         world().size());
  };
  struct Left {
    std::vector<Json> lines;
    test::Tensors tensors;
  };
  const auto go = [&](const std::string& gather, const std::vector<std::int64_t>& stops) {
    for (const std::int64_t stop : stops) {
      EXPECT_EQ(run_train(deck(gather), world(), until(stop)), stop > 0 ? ExitCode::again : ExitCode::done);
    }
    Left left{lines_of(folder.run()), newest_tensors(deck(gather), world())};
    folder.put_aside(gather + std::to_string(stops.size()));
    return left;
  };
  const Left eager = go("eager", {0});
  EXPECT_EQ(eager.lines.size(), 6u + 6);
  const Left lazy = go("lazy", {3, 0});  // no checkpoint is due after step 3
  EXPECT_EQ(timeless(lazy.lines), timeless(eager.lines));
  EXPECT_EQ(lazy.tensors, eager.tensors);
}

TEST(Loop, CommunicationIsReportedByAxis) {
  const Folder folder;
  world().ledger().clear();  // of the sessions before
  const Deck deck = test::deck_of(test::small_transformer(), overrides(folder), world().size());
  EXPECT_EQ(run_train(deck, world(), until(2)), ExitCode::again);
  if (world().rank() == 0) {
    const Json last = all_lines_of(folder.run()).back();
    EXPECT_EQ(last.value("event", "") == "communication", world().size() > 1);
    if (world().size() > 1) {
      EXPECT_EQ(last["step"], 2);
      EXPECT_FALSE(last.contains("virtual_picoseconds"));
      bool data = false;
      for (const Json& axis : last["axes"]) {
        if (axis["axis"] != "data") continue;
        data = true;
        // Of every rank and group of parameters: the gather of initial values, and two steps' all-reduces.
        const int operations = axis["operations"], each = 3 * world().size();
        EXPECT_EQ(operations % each, 0);
        EXPECT_EQ(axis["messages"], operations / 3 * (1 + 2 * 2) * (world().size() - 1));
        EXPECT_GT(axis["bytes_inside"], 0);
        EXPECT_EQ(axis["bytes_between"], 0);
        EXPECT_GE(axis["exposed_largest"], axis["exposed_mean"]);
      }
      EXPECT_TRUE(data) << last;
    }
  }
  barrier(world(), Phase::control);
}

// The phases' seconds add up to the session's; the trace shows the work, its units and every axis.
TEST(Loop, TimeIsReportedByPhase) {
  const Folder folder;
  const int ranks = world().size();
  std::vector<std::string> more{"run.trace=true", "debug.record=5"};
  if (ranks > 1) more.push_back("parallel.dense.depth=" + std::to_string(ranks));
  const Deck deck = test::deck_of(test::small_transformer(), overrides(folder, more), ranks);
  const Stopwatch watch;
  TrainOptions options = until(0);
  options.started_ns = now_ns() - 3'000'000'000;  // the launch took 3 seconds
  EXPECT_EQ(run_train(deck, world(), options), ExitCode::done);
  const double outside = watch.seconds() + 3;
  if (world().rank() != 0) return;
  const Json line = of_event(all_lines_of(folder.run()), "phases");
  double sum = 0, steps = 0;
  for (const auto& [phase, seconds] : line.at("mean").items()) {
    sum += seconds.get<double>();
    const bool of_steps =
        phase != "start" && phase != "evaluation" && phase != "checkpoint" && phase != "checks" && phase != "between";
    if (of_steps) steps += seconds.get<double>();
    EXPECT_GT(seconds.get<double>(), 0.0) << phase;
    EXPECT_GE(line.at("largest").at(phase).get<double>(), 0.999 * seconds.get<double>()) << phase;
  }
  const double whole = line.at("seconds").get<double>();
  EXPECT_NEAR(sum, whole, 0.01 * whole);
  EXPECT_GE(line.at("mean").at("start").get<double>(), 3.0);
  EXPECT_LE(whole, outside);
  double reported = 0;
  for (const Json& step : lines_of(folder.run())) {
    if (!step.contains("event")) reported += step.at("seconds").get<double>();
  }
  EXPECT_LE(steps, 1.01 * reported + 0.01);
  EXPECT_GE(steps, 0.5 * reported);

  const Json trace = Json::parse(bytes_of(folder.run() + "/trace.json"));
  std::map<std::string, int> spans, tracks;
  std::map<std::string, std::string> open;  // flights by id
  for (const Json& event : trace.at("traceEvents")) {
    const std::string kind = event.at("ph");
    if (kind == "M" && event.at("name") == "thread_name") ++tracks[event.at("args").at("name")];
    if (kind == "X") ++spans[event.at("name")];
    if (kind == "b") open[event.at("id")] = event.at("name");
    if (kind == "e") {
      EXPECT_EQ(open.extract(event.at("id").get<std::string>()).mapped(), event.at("name"));
    }
  }
  EXPECT_TRUE(open.empty());
  EXPECT_EQ(tracks["work"], ranks);
  for (const char* name : {"input", "forward", "backward", "norm", "update"}) {
    EXPECT_EQ(spans[name], 10 * ranks) << name;
  }
  EXPECT_EQ(spans["gradient sum"], 2 * 10 * ranks);  // started by the schedule, then finished
  EXPECT_EQ(spans["evaluation"], 3 * ranks);
  EXPECT_EQ(spans["checkpoint"], 4 * ranks);
  EXPECT_GE(spans["layers.0"], 2 * 10 * ranks);
  EXPECT_EQ(spans["layers.0"], spans["head"]);
  if (ranks > 1) {
    EXPECT_EQ(tracks["depth"], ranks);
    EXPECT_GE(spans["all_gather"], 10 * ranks);
  }
}

TEST(Loop, P06RestartOnOtherRankCounts) {
  const Folder folder;
  const Communicator alone(world(), {world().rank()}, "alone");
  const auto deck_for = [&](int ranks) { return test::deck_of(test::small_transformer(), overrides(folder), ranks); };
  if (world().rank() == 0) {
    EXPECT_EQ(run_train(deck_for(1), alone, until(0)), ExitCode::done);
  }
  barrier(world(), Phase::control);
  const test::Tensors unbroken = newest_tensors(deck_for(1), alone);
  folder.put_aside("unbroken");
  for (const int ranks : {1, 2, 3, world().size()}) {
    if (ranks > world().size()) continue;
    EXPECT_EQ(run_train(deck_for(world().size()), world(), until(5)), ExitCode::again);
    test::on_ranks(ranks, [&](const Communicator& some) {
      EXPECT_EQ(run_train(deck_for(ranks), some, until(0)), ExitCode::done);
    });
    EXPECT_LE(test::difference(unbroken, newest_tensors(deck_for(1), alone)), 1e-11) << ranks << " ranks";
    folder.put_aside("from_" + std::to_string(ranks) + "_" + std::to_string(world().size()) + "_ranks");
    if (ranks == world().size()) break;
  }
}

// A killed run: checkpoints of step 3 and 6 exist, metrics.jsonl ends in the middle of step 8's line.
TEST(Loop, P21UnfinishedLineIsCutOff) {
  const Folder folder;
  const Deck deck = test::deck_of(test::small_transformer(), overrides(folder), world().size());
  EXPECT_EQ(run_train(deck, world(), until(8)), ExitCode::again);
  if (world().rank() == 0) {
    fs::remove(folder.run() + "/checkpoints/step_00000008.commit");
    const std::string path = folder.run() + "/metrics.jsonl";
    fs::resize_file(path, fs::file_size(path) - 17);
  }
  barrier(world(), Phase::control);
  EXPECT_EQ(run_train(deck, world(), until(0)), ExitCode::done);
  if (world().rank() != 0) return;
  const std::vector<Json> lines = lines_of(folder.run());  // every line parses
  const auto restart = std::find(lines.begin(), lines.end(), Json{{"event", "restart"}, {"step", 6}});
  EXPECT_NE(restart, lines.end());
  EXPECT_EQ(timeless(lines).size(), 13u);
}

// The stop file: nothing is lost, the file is gone, the same command goes on.
TEST(Loop, P52StopFile) {
  const Folder folder;
  const Deck deck = test::deck_of(test::small_transformer(), overrides(folder), world().size());
  EXPECT_EQ(run_train(deck, world(), until(2)), ExitCode::again);
  if (world().rank() == 0) std::ofstream(folder.run() + "/STOP") << "\n";
  barrier(world(), Phase::control);
  EXPECT_EQ(run_train(deck, world(), until(0)), ExitCode::again);
  EXPECT_EQ(run_train(deck, world(), until(0)), ExitCode::done);
  if (world().rank() == 0) {
    EXPECT_EQ(lines_of(folder.run()).size(), 10u + 3 + 2);
  }
}

// A stop during an evaluation drops it: the restart makes it before it goes on, and only then.
TEST(Loop, P52DroppedEvaluationIsMadeAfterTheRestart) {
  const Folder folder;
  const Deck deck = test::deck_of(test::small_transformer(), overrides(folder), world().size());
  EXPECT_EQ(run_train(deck, world(), until(4)), ExitCode::again);
  if (world().rank() == 0) {
    std::vector<Json> lines = lines_of(folder.run());
    ASSERT_EQ(lines.size(), 5u);
    EXPECT_EQ(lines.back().value("event", ""), "eval");
    lines.pop_back();
    std::ofstream file(folder.run() + "/metrics.jsonl");
    for (const Json& line : lines) file << line.dump() << "\n";
  }
  barrier(world(), Phase::control);
  EXPECT_EQ(run_train(deck, world(), until(6)), ExitCode::again);
  EXPECT_EQ(run_train(deck, world(), until(0)), ExitCode::done);
  if (world().rank() != 0) return;
  const std::vector<Json> lines = lines_of(folder.run());
  ASSERT_EQ(lines.size(), 10u + 3 + 2);
  EXPECT_EQ(lines[4], (Json{{"event", "restart"}, {"step", 4}}));
  EXPECT_EQ(lines[5].value("event", ""), "eval");
  EXPECT_EQ(lines[5].value("step", 0), 4);
}

// A finished run has nothing to do; its folder stays as it is but for a restart line.
TEST(Loop, FinishedRun) {
  const Folder folder;
  const Deck deck = test::deck_of(test::small_transformer(), overrides(folder), world().size());
  EXPECT_EQ(run_train(deck, world(), until(0)), ExitCode::done);
  EXPECT_EQ(run_train(deck, world(), until(0)), ExitCode::done);
  if (world().rank() == 0) {
    EXPECT_EQ(lines_of(folder.run()).size(), 10u + 3 + 1);
  }
}

// Another total changes a cosine's rate from here on: both schedules are shown, and only --new-schedule goes on.
TEST(Loop, P12AnotherSchedule) {
  const Folder folder;
  const Deck deck = test::deck_of(test::small_transformer(), overrides(folder), world().size());
  EXPECT_EQ(run_train(deck, world(), until(5)), ExitCode::again);
  Deck longer = deck;
  longer.run.steps = 12;
  try {
    run_train(longer, world(), until(0));
    FAIL() << "another schedule";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::input);
    EXPECT_NE(std::string(error.what()).find("at step 10"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("at step 12"), std::string::npos) << error.what();
  }
  TrainOptions options = until(0);
  options.new_schedule = true;
  EXPECT_EQ(run_train(longer, world(), options), ExitCode::done);
}

// adamw's moments would be read by lamb without a word: they have the same names.
TEST(Loop, AnotherOptimizerIsRefused) {
  const Folder folder;
  Deck deck = test::deck_of(test::small_transformer(), overrides(folder), world().size());
  EXPECT_EQ(run_train(deck, world(), until(2)), ExitCode::again);
  deck.optimizer.kind = OptimizerKind::lamb;
  try {
    run_train(deck, world(), until(0));
    ADD_FAILURE() << "adamw's checkpoint was taken for lamb's";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::input);
    const std::string said = error.what();
    EXPECT_TRUE(said.starts_with("optimizer.kind: the checkpoint ")) << said;
    EXPECT_NE(said.find(" holds the states of adamw, the deck asks for lamb; type optimizer.kind=adamw "), said.npos)
        << said;
  }
}

TEST(Loop, OtherDataAreRefused) {
  const Folder folder;
  Deck deck = test::deck_of(test::small_transformer(), overrides(folder), world().size());
  EXPECT_EQ(run_train(deck, world(), until(2)), ExitCode::again);
  deck.data.samples = 400;
  EXPECT_THROW(run_train(deck, world(), until(0)), Error);
  TrainOptions options = until(0);
  options.new_data = true;
  EXPECT_EQ(run_train(deck, world(), options), ExitCode::done);
}

}  // namespace
}  // namespace fourfold
