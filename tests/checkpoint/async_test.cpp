// Asynchronous saves: the same files as synchronous ones, whatever the model does meanwhile; errors of one rank are all
// ranks'; the memory is the copy.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "checkpoint/record.hpp"
#include "support.hpp"
#include "test_support.hpp"

namespace fourfold::checkpoint {
namespace {

using namespace test;

// Counts what a save takes.
struct Memory {
  std::int64_t live = 0, peak = 0;
  AllocateHost allocate() {
    return [this](std::int64_t bytes) {
      live += bytes;
      peak = std::max(peak, live);
      return std::shared_ptr<std::byte>(new std::byte[static_cast<std::size_t>(bytes)], [this, bytes](std::byte* data) {
        live -= bytes;
        delete[] data;
      });
    };
  }
};

// The tensors go round the ranks but the last, as stages of a pipeline have them: that one has nothing at all.
Part stages(std::uint64_t salt) {
  Part part(small_model(), all_data(), world().rank(), salt);
  const std::size_t holders = static_cast<std::size_t>(std::max(world().size() - 1, 1));
  for (std::size_t i = 0; i < part.shards().size(); ++i) {
    NamedShard& shard = part.shards()[i];
    const bool here = static_cast<std::size_t>(world().rank()) == i % holders;
    shard.owned = {0, here ? shard.shard.size() : 0};
    if (here) continue;
    shard.shard.flat = {0, 0};
    shard.data = nullptr;
  }
  return part;
}

std::vector<DenseShape> shapes() {
  std::vector<DenseShape> all = dense_factorisations(world().size());
  return fourfold::test::sample(all, world().size() < 8 ? 4 : 2);
}

std::string name_of(const DenseShape& shape) {
  return std::to_string(shape.data) + " x " + std::to_string(shape.depth) + " x " + std::to_string(shape.row) + " x " +
         std::to_string(shape.col);
}

class Async : public ::testing::Test {
 protected:
  // The part is overwritten while the save is under way.
  void expect_equal_files(Part part) {
    save(world(), folder_ / "sync", 100, part.shards(), small_state(), strict());
    AsyncSave under_way(world(), folder_ / "async", 100, part.shards(), small_state(), strict());
    part.clear();
    under_way.complete();
    barrier(world(), Phase::control);
    for (const char* name : {"step_00000100.h5", "step_00000100.commit"}) {
      const std::string written = bytes_of(folder_ / (std::string("async/") + name));
      EXPECT_FALSE(written.empty());
      EXPECT_TRUE(written == bytes_of(folder_ / (std::string("sync/") + name))) << name;
    }
    EXPECT_EQ(under_way.report().bytes, std::ssize(bytes_of(folder_ / "async/step_00000100.h5")));
    EXPECT_GT(under_way.report().gigabytes_per_second(), 0);
    EXPECT_LE(under_way.report().blocked_seconds, under_way.report().seconds);
    barrier(world(), Phase::control);
  }

  const Folder folder_;
};

TEST_F(Async, FilesAreThoseOfSynchronousSavesOnEveryGrid) {
  for (const DenseShape& shape : shapes()) {
    SCOPED_TRACE(name_of(shape));
    expect_equal_files(Part(small_model(), shape, world().rank(), 3));
  }
}

TEST_F(Async, FilesAreEqualWhereRanksHoldSomeTensorsOrNone) {
  expect_equal_files(stages(3));
}

TEST_F(Async, StepsGoOnUntilAllAgreeThatItIsCommitted) {
  Part part(small_model(), all_data(), world().rank(), 3);
  const Part expected = part;
  AsyncSave under_way(world(), folder_.path(), 5, part.shards(), small_state(), strict());
  part.clear();
  EXPECT_FALSE(find_newest(world(), folder_.path()).newest);
  int boundaries = 1;
  while (!under_way.advance()) ++boundaries;
  EXPECT_GE(boundaries, 2);  // written, then on the disk
  Part read(small_model(), all_data(), world().rank(), 9);
  const Restart restart = load_newest(world(), folder_.path(), read.shards());
  ASSERT_TRUE(restart.loaded);
  EXPECT_EQ(restart.loaded->state, stepped(small_state(), 5));
  EXPECT_TRUE(read == expected);
}

TEST_F(Async, TheMemoryIsOneCopyOfWhatTheRankOwns) {
  const DenseShape cut{1, 1, world().size(), 1};
  const Part part(small_model(), cut, world().rank(), 3);
  Memory memory;
  SaveOptions options = strict();
  options.allocate = memory.allocate();
  {
    AsyncSave under_way(world(), folder_.path(), 1, part.shards(), {}, options);
    EXPECT_EQ(memory.live, copy_bytes(part.shards()));
    while (!under_way.advance()) continue;
    EXPECT_EQ(memory.live, 0);
  }
  std::int64_t all = copy_bytes(part.shards());
  all_reduce_sum<std::int64_t>(world(), {&all, 1}, Summation::fast, Phase::control);
  std::int64_t model = 0;
  for (const NamedShard& shard : part.shards()) model += shard.shard.global_size() * h5::element_bytes(shard.type);
  EXPECT_EQ(all, model);
  EXPECT_EQ(memory.peak, copy_bytes(part.shards()));

  memory = {};
  options.transfer_bytes = 40960;
  save(world(), folder_.path(), 2, part.shards(), {}, options);
  EXPECT_EQ(memory.peak, 40960);
  LoadOptions reading;
  reading.allocate = options.allocate;
  reading.transfer_bytes = 8192;
  memory.peak = 0;
  Part read(small_model(), cut, world().rank(), 9);
  ASSERT_TRUE(load_newest(world(), folder_.path(), read.shards(), reading).loaded);
  EXPECT_TRUE(read == part);
  EXPECT_EQ(memory.peak, 8192);
  EXPECT_EQ(memory.live, 0);
}

// Values that are not in the host's memory are asked for.
TEST_F(Async, ElementsElsewhereAreFetchedAndStored) {
  Part part(small_model(), all_data(), world().rank(), 3);
  const auto elsewhere = [](std::vector<NamedShard> shards) {
    for (NamedShard& shard : shards) {
      char* const home = static_cast<char*>(shard.data);
      const std::int64_t bytes = h5::element_bytes(shard.type);
      shard.fetch = [=](Range local, void* to) {
        std::memcpy(to, home + local.begin * bytes, static_cast<std::size_t>(local.size() * bytes));
      };
      shard.store = [=](Range local, const void* from) {
        std::memcpy(home + local.begin * bytes, from, static_cast<std::size_t>(local.size() * bytes));
      };
      shard.data = nullptr;
    }
    return shards;
  };
  SaveOptions options = strict();
  options.transfer_bytes = 65536;
  for (const bool async : {false, true}) {
    save_in_mode(async, folder_.path(), async ? 2 : 1, elsewhere(part.shards()), options);
    Part read(small_model(), all_data(), world().rank(), 9);
    ASSERT_TRUE(load_newest(world(), folder_.path(), elsewhere(read.shards())).loaded);
    EXPECT_TRUE(read == part);
  }
}

TEST_F(Async, OneThatIsGivenUpLeavesTheOlderStep) {
  const Part part(small_model(), all_data(), world().rank(), 3);
  save(world(), folder_.path(), 1, part.shards(), {}, strict());
  { const AsyncSave under_way(world(), folder_.path(), 2, part.shards(), {}, strict()); }
  barrier(world(), Phase::control);
  const Found found = find_newest(world(), folder_.path());
  ASSERT_TRUE(found.newest);
  EXPECT_EQ(found.newest->step, 1);
  const SaveReport report = save_in_mode(true, folder_.path(), 3, part.shards(), strict());
  if (world().rank() == 0) {
    EXPECT_TRUE(any_has(report.notes, "step_00000002.h5.tmp: left by an interrupted save"));
  }
}

// A limit that the last rank's thread meets, set once the file is there.
TEST_F(Async, AWriteThatFailsOnOneRankFailsOnAllBetweenTwoSteps) {
  const Part part({{"/params/w", ElementType::fp32, {512, 1024}}}, all_data(), world().rank(), 1);
  save(world(), folder_.path(), 1, part.shards(), {}, strict());
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  SaveOptions options = strict();
  options.allocate = [&](std::int64_t bytes) {
    if (world().rank() == world().size() - 1) {
      rlimit small = before;
      small.rlim_cur = 1 << 20;
      setrlimit(RLIMIT_FSIZE, &small);
    }
    return std::shared_ptr<std::byte>(new std::byte[static_cast<std::size_t>(bytes)],
                                      std::default_delete<std::byte[]>());
  };
  AsyncSave under_way(world(), folder_.path(), 2, part.shards(), {}, options);
  const auto message = agreed_error(
      [&] {
        while (!under_way.advance()) continue;
      },
      ExitCode::storage);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(has(message, "checkpoint of step 2 not written")) << message;
  EXPECT_TRUE(has(message, "File too large")) << message;
  if (world().size() > 1) {
    EXPECT_TRUE(has(message, "(rank " + std::to_string(world().size() - 1) + ")")) << message;
  }
  const Found found = find_newest(world(), folder_.path());
  ASSERT_TRUE(found.newest);
  EXPECT_EQ(found.newest->step, 1);
  EXPECT_TRUE(found.rejected.empty());  // nothing is left of step 2
}

// The settings of HDF5 and MPI-IO change how a file is written, not what is in it.
TEST_F(Async, SettingsOfParallelIoGiveReadableFilesInBothModes) {
  const Part part(small_model(), {1, 1, world().size(), 1}, world().rank(), 3);
  h5::FileOptions independent;
  independent.collective_metadata = false;
  h5::FileOptions tuned;
  tuned.alignment = 65536;
  tuned.hints = {{"cb_buffer_size", "65536"}, {"cb_nodes", "1"}, {"striping_factor", "4"}, {"striping_unit", "65536"}};
  std::int64_t step = 0;
  for (const h5::FileOptions& file : {h5::FileOptions{}, independent, tuned}) {
    SaveOptions options = strict();
    options.file = file;
    options.transfer_bytes = 1 << 16;
    LoadOptions reading;
    reading.file = file;
    reading.strict_collective = true;
    const auto begin_of_large = [&] {
      const std::string record = bytes_of(folder_ / ("step_0000000" + std::to_string(step) + ".commit"));
      for (const DatasetRecord& dataset : CommitRecord::from_text(record).datasets)
        if (dataset.name == "/params/large") return dataset.offset;
      return std::int64_t{-1};
    };
    for (const bool async : {false, true}) {
      const SaveReport report = save_in_mode(async, folder_.path(), ++step, part.shards(), options);
      Part read(small_model(), all_data(), world().rank(), 9);
      const Restart restart = load_newest(world(), folder_.path(), read.shards(), reading);
      ASSERT_TRUE(restart.loaded);
      EXPECT_EQ(restart.loaded->source.step, step);
      EXPECT_TRUE(read == Part(small_model(), all_data(), world().rank(), 3));
      EXPECT_EQ(begin_of_large() % file.alignment, 0);
      EXPECT_LE(report.bytes, predicted_bytes(part.shards(), stepped(small_state(), step), file));
    }
  }
}

}  // namespace
}  // namespace fourfold::checkpoint
