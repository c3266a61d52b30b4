// Checkpoints of a run as the deck wants them: asynchronous ones hold what synchronous ones do, take the memory that is
// told, never pile up, and a failure does what checkpoint.on_error says.
#include "train/checkpoints.hpp"

#include <gtest/gtest.h>
#include <sys/mount.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/log.hpp"
#include "checkpoint/record.hpp"
#include "comm/agree.hpp"
#include "comm/collectives.hpp"
#include "comm/launch.hpp"
#include "model/describe.hpp"
#include "mpi_test.hpp"
#include "runs.hpp"
#include "test_support.hpp"
#include "train/loop.hpp"
#include "train/pipeline.hpp"

namespace fourfold {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

const Communicator& world() {
  return test::launch().world();
}

// A new folder for all ranks, removed at the end; on a disk in memory of so many bytes where that is asked for.
class Folder {
 public:
  explicit Folder(std::int64_t disk_bytes = 0) {
    std::string pattern = (fs::temp_directory_path() / "fourfold_saves_XXXXXX").string();
    if (world().rank() == 0 && mkdtemp(pattern.data()) == nullptr) pattern.clear();
    path_ = broadcast_string(world(), pattern);
    if (disk_bytes == 0) return;
    const std::string size = "size=" + std::to_string(disk_bytes);
    const bool here = world().rank() == 0 && mount("fourfold", path_.c_str(), "tmpfs", 0, size.c_str()) == 0;
    mounted_ = agree_any(world(), here);
  }
  ~Folder() {
    barrier(world(), Phase::control);
    std::error_code ignored;
    if (world().rank() != 0) return;
    if (mounted_) umount2(path_.c_str(), MNT_DETACH);
    fs::remove_all(path_, ignored);
  }
  bool mounted() const { return mounted_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
  bool mounted_ = false;
};

ExitCode run_train(const Deck& deck, std::int64_t stop_at = 0) {
  const GridComms comms = test::grid_comms(deck, world());
  MemoryLedger ledger;
  Pool pool(ledger);
  TrainOptions options;
  options.stop_at_step = stop_at;
  options.version = "test";
  const ExitCode code = train<double>(deck, comms, pool, options);
  barrier(world(), Phase::control);
  return code;
}

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string record_of(const std::string& run, std::int64_t step) {
  return text_of(run + "/checkpoints/step_0000000" + std::to_string(step) + ".commit");
}

// Names, shapes and checksums of the datasets.
std::string datasets_of(const std::string& run, std::int64_t step) {
  std::string text;
  for (const checkpoint::DatasetRecord& dataset : checkpoint::CommitRecord::from_text(record_of(run, step)).datasets) {
    text += dataset.name;
    for (const std::int64_t length : dataset.shape) text += " " + std::to_string(length);
    for (const std::uint64_t sum : dataset.checksums) text += " " + std::to_string(sum);
    text += "\n";
  }
  return text;
}

std::vector<std::vector<std::string>> grids() {
  const std::string ranks = std::to_string(world().size());
  std::vector<std::vector<std::string>> all = {{"optimizer.shard=data"},
                                               {"parallel.dense.depth=" + ranks},
                                               {"parallel.dense.row=" + ranks},
                                               {"parallel.dense.col=" + ranks, "optimizer.shard=data"}};
  if (world().size() > 1) all.push_back({"parallel.stages=2", "batch.micro_batches=4"});
  if (world().size() > 3)
    all.push_back({"parallel.stages=2", "parallel.dense.row=2", "optimizer.shard=data", "batch.micro_batches=4"});
  return test::sample(all, 3);
}

Deck deck_in(const std::string& folder, std::vector<std::string> more) {
  more.push_back("run.folder=" + folder);
  return test::deck_of(test::small_transformer(), more, world().size());
}

std::vector<std::string> with(std::vector<std::string> some, const std::vector<std::string>& more) {
  some.insert(some.end(), more.begin(), more.end());
  return some;
}

TEST(Checkpoints, AsynchronousRunsSaveWhatSynchronousOnesDo) {
  for (const std::vector<std::string>& grid : grids()) {
    SCOPED_TRACE(grid[0]);
    const Folder folder;
    const auto run = [&](const std::string& mode, std::int64_t stop_at) {
      return run_train(deck_in(folder / mode, with(grid, {"run.steps=7", "checkpoint.every=2", "checkpoint.keep=0",
                                                          "eval.every=5", "checkpoint.mode=" + mode})),
                       stop_at);
    };
    EXPECT_EQ(run("sync", 0), ExitCode::done);
    EXPECT_EQ(run("async", 3), ExitCode::again);  // what was under way is committed, and the last step too
    EXPECT_FALSE(record_of(folder / "async", 3).empty());
    EXPECT_EQ(run("async", 0), ExitCode::done);
    for (const std::int64_t step : {2, 4, 6, 7})
      EXPECT_EQ(datasets_of(folder / "async", step), datasets_of(folder / "sync", step)) << step;
  }
}

std::vector<Json> events(const std::string& run, const std::string& kind) {
  std::vector<Json> found;
  std::ifstream file(run + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const Json entry = Json::parse(line);
    if (kind.empty() || entry.value("event", "step") == kind) found.push_back(entry);
  }
  return found;
}

TEST(Checkpoints, OneIsUnderWayAtMostAndEvaluationsComeAfterIt) {
  const Folder folder;
  set_log_rank(world().rank());
  testing::internal::CaptureStdout();
  EXPECT_EQ(run_train(deck_in(folder / "run",
                              {"run.steps=4", "checkpoint.every=1", "checkpoint.mode=async", "eval.every=3"})),
            ExitCode::done);
  const std::string log = testing::internal::GetCapturedStdout();
  if (world().rank() != 0) return;
  EXPECT_NE(log.find("the checkpoint of step 2 waits for that of step 1"), std::string::npos) << log;
  EXPECT_EQ(log.find("the checkpoint of step 3 waits"), std::string::npos) << log;  // an evaluation came between
  EXPECT_NE(log.find("training waited"), std::string::npos) << log;
  std::string order;
  for (const Json& entry : events(folder / "run", "")) {
    const std::string event = entry.value("event", "step");
    if (event == "checkpoint" || event == "eval" || event == "step")
      order += event.substr(0, 1) + std::to_string(entry["step"].get<int>()) + " ";
  }
  EXPECT_EQ(order, "s1 s2 c1 s3 c2 e3 s4 c3 e4 c4 ") << order;
  const Json saved = events(folder / "run", "checkpoint").at(0);
  EXPECT_EQ(saved["bytes"].get<std::int64_t>(),
            checkpoint::CommitRecord::from_text(record_of(folder / "run", 3)).bytes);
  EXPECT_GE(saved["seconds"].get<double>(), saved["blocked_seconds"].get<double>());
  EXPECT_GT(saved["gigabytes_per_second"].get<double>(), 0);
  EXPECT_GE(saved["fsync_seconds"].get<double>(), 0);
}

// On every grid: what check says of the rank that has most, the copy's size and the ledger's peak are one number.
TEST(Checkpoints, TheMemoryIsToldToTheByte) {
  const Folder folder;
  for (const std::vector<std::string>& grid : grids()) {
    SCOPED_TRACE(grid[0]);
    const auto extra = [&](const std::string& mode) {
      const Deck deck =
          deck_in(folder / "run", with(grid, {"checkpoint.mode=" + mode, "checkpoint.transfer_bytes=12288",
                                              "model.hidden=19", "model.ffn.hidden=25"}));
      test::Training<double> run(deck, world());
      int committed = 0;
      Checkpoints checkpoints(world(), deck, run.loader, run.shards(), run.memory, "test",
                              [&](std::int64_t, const checkpoint::SaveReport&) { ++committed; });
      run.memory.reset_peaks();
      const std::int64_t before = run.memory.live(MemoryTag::buffers);
      checkpoints.save({1, 48}, {});
      checkpoints.complete();
      EXPECT_EQ(committed, 1);
      EXPECT_EQ(run.memory.live(MemoryTag::buffers), before);
      std::int64_t most = run.memory.peak(MemoryTag::buffers) - before;
      all_reduce_max<std::int64_t>(world(), {&most, 1}, Phase::control);
      return most;
    };
    const Deck deck = deck_in(folder / "run", with(grid, {"model.hidden=19", "model.ffn.hidden=25"}));
    EXPECT_EQ(extra("sync"), 12288);
    EXPECT_EQ(extra("async"), memory_per_rank(deck, plan_pipeline(deck)).saved_copy);
  }
}

std::string storage_error(const Deck& deck) {
  try {
    run_train(deck);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::storage);
    EXPECT_EQ(error.caller(), Caller::all_ranks);
    return error.what();
  }
  return "no error";
}

// A disk with room for one checkpoint and a half.
TEST(Checkpoints, AFullDiskStopsTheRunOrIsSaid) {
  set_log_rank(world().rank());
  std::int64_t bytes = 0;
  {
    const Folder folder;
    run_train(deck_in(folder / "run", {"run.steps=1", "optimizer.schedule.warmup=0"}));
    bytes = checkpoint::CommitRecord::from_text(record_of(folder / "run", 1)).bytes;
  }
  const Folder none(bytes / 2);
  if (!none.mounted()) GTEST_SKIP() << "NOT TESTED: this user may not mount a tmpfs";
  EXPECT_NE(storage_error(deck_in(none / "run", {"run.steps=2", "optimizer.schedule.warmup=0"})).find(": one takes "),
            std::string::npos);
  for (const std::string mode : {"sync", "async"}) {
    SCOPED_TRACE(mode);
    const std::vector<std::string> keys = {"run.steps=4", "checkpoint.every=1", "checkpoint.keep=1",
                                           "checkpoint.mode=" + mode};
    const auto steps = [&](const Folder& folder) {
      return world().rank() == 0 ? std::ssize(events(folder / "run", "step")) : -1;
    };
    const Folder stop(bytes * 3 / 2 + (1 << 16));
    EXPECT_NE(storage_error(deck_in(stop / "run", keys)).find("checkpoint of step 2 not written"), std::string::npos);
    const Folder warn(bytes * 3 / 2 + (1 << 16));
    testing::internal::CaptureStderr();
    const std::string last = storage_error(deck_in(warn / "run", with(keys, {"checkpoint.on_error=warn"})));
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_NE(last.find("the run ends without its last checkpoint: checkpoint of step 4 not written"),
              std::string::npos)
        << last;
    if (world().rank() == 0) {
      EXPECT_EQ(steps(stop), 2);
      EXPECT_EQ(steps(warn), 4);
      EXPECT_NE(log.find("checkpoint of step 2 not written"), std::string::npos) << log;
      EXPECT_NE(log.find("training goes on"), std::string::npos) << log;
      EXPECT_NE(log.find("no space for the checkpoints to come: 2 more"), std::string::npos) << log;
    }
    for (const Folder* folder : {&stop, &warn}) {
      EXPECT_FALSE(record_of(*folder / "run", 1).empty());
      EXPECT_TRUE(record_of(*folder / "run", 2).empty());
    }
  }
}

}  // namespace
}  // namespace fourfold
