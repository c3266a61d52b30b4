// Full, read-only and limited storage: one error of all ranks, temporaries gone, what was committed untouched.
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include "checkpoint/posix.hpp"
#include "support.hpp"

namespace fourfold::checkpoint {
namespace {

using namespace test;

const std::vector<Tensor>& model() {
  static const std::vector<Tensor> tensors{{"/params/w", ElementType::fp32, {512, 1024}}};  // 2 MiB
  return tensors;
}

Part part(std::uint64_t salt) {
  return Part(model(), all_data(), world().rank(), salt);
}

// A file system in memory of so many bytes, mounted in a folder of this test; says so where mounting is not allowed.
class MemoryFileSystem {
 public:
  explicit MemoryFileSystem(std::int64_t bytes) {
    const std::string size = "size=" + std::to_string(bytes);
    bool here = false;
    if (world().rank() == 0) here = mount("fourfold", folder_.path().c_str(), "tmpfs", 0, size.c_str()) == 0;
    mounted_ = agree_any(world(), here);
  }
  ~MemoryFileSystem() {
    on_rank_0([&] {
      if (mounted_) umount2(folder_.path().c_str(), MNT_DETACH);
    });
  }
  bool mounted() const { return mounted_; }
  void make_read_only() const {
    on_rank_0([&] { ASSERT_EQ(mount(nullptr, folder_.path().c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, nullptr), 0); });
  }
  void resize(std::int64_t bytes) const {
    const std::string size = "size=" + std::to_string(bytes);
    on_rank_0([&] { ASSERT_EQ(mount(nullptr, folder_.path().c_str(), "tmpfs", MS_REMOUNT, size.c_str()), 0); });
  }
  const std::string& path() const { return folder_.path(); }

 private:
  Folder folder_;
  bool mounted_ = false;
};

#define SKIP_UNLESS_MOUNTED(file_system) \
  if (!(file_system).mounted()) GTEST_SKIP() << "NOT TESTED: this user may not mount a tmpfs"

std::vector<std::string> left_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const std::string& name : file_names(folder))
    if (name.starts_with("step_")) names.push_back(name);
  return names;
}

// Room for one checkpoint and a half.
TEST(Storage, FullDiskFailsOnAllRanksAndTheOlderStepStays) {
  const MemoryFileSystem storage(3 << 20);
  SKIP_UNLESS_MOUNTED(storage);
  save(world(), storage.path(), 1, part(1).shards(), {}, strict(1));
  const auto message =
      agreed_error([&] { save(world(), storage.path(), 2, part(2).shards(), {}, strict(1)); }, ExitCode::storage);
  EXPECT_TRUE(has(message, "checkpoint of step 2 not written")) << message;
  EXPECT_TRUE(has(message, "needed 21")) << message;
  EXPECT_TRUE(has(message, "bytes, available 10")) << message;
  EXPECT_EQ(left_in(storage.path()), (std::vector<std::string>{"step_00000001.commit", "step_00000001.h5"}));
  Part read = part(9);
  const Restart restart = load_newest(world(), storage.path(), read.shards());
  ASSERT_TRUE(restart.loaded);
  EXPECT_TRUE(read == part(1));
}

TEST(Storage, ReservingMoreThanThereIsSaysHowMuch) {
  const MemoryFileSystem storage(1 << 20);
  SKIP_UNLESS_MOUNTED(storage);
  on_rank_0([&] {
    const std::string path = storage.path() + "/x";
    create_file(path);
    try {
      reserve(path, 5 << 20);
      ADD_FAILURE() << "reserved";
    } catch (const Error& error) {
      EXPECT_TRUE(has(error.what(), "needed 5242880 bytes, available ")) << error.what();
    }
    reserve(path, 1 << 19);
    EXPECT_EQ(file_size(path), 1 << 19);
  });
}

// A thread's write that fails is agreed between steps: the older step stays, nothing of the new one does, and the same
// process can save once there is room. So it is where a synchronous save sees in time that there is none.
TEST(Storage, AFailureLeavesTheOlderStepAndTheNextSaveSucceeds) {
  for (const bool async : {false, true}) {
    SCOPED_TRACE(async ? "async" : "sync");
    const MemoryFileSystem storage(3 << 20);
    SKIP_UNLESS_MOUNTED(storage);
    SaveOptions options = strict(2);
    options.check_space = !async;
    save_in_mode(async, storage.path(), 1, part(1).shards(), options);
    const auto message =
        agreed_error([&] { save_in_mode(async, storage.path(), 2, part(2).shards(), options); }, ExitCode::storage);
    EXPECT_TRUE(has(message, "checkpoint of step 2 not written")) << message;
    EXPECT_TRUE(has(message, async ? "No space left on device" : "no space in")) << message;
    EXPECT_TRUE(has(message, "needed 21")) << message;
    EXPECT_TRUE(has(message, "bytes, available ")) << message;
    EXPECT_EQ(left_in(storage.path()), (std::vector<std::string>{"step_00000001.commit", "step_00000001.h5"}));
    EXPECT_GE(free_bytes(storage.path()), 1 << 19);  // what was written of it is free again
    Part read = part(9);
    ASSERT_TRUE(load_newest(world(), storage.path(), read.shards()).loaded);
    EXPECT_TRUE(read == part(1));
    storage.resize(16 << 20);
    save_in_mode(async, storage.path(), 3, part(3).shards(), options);
    ASSERT_TRUE(load_newest(world(), storage.path(), read.shards()).loaded);
    EXPECT_TRUE(read == part(3));
  }
}

void become(uid_t user) {
  ASSERT_EQ(seteuid(user), 0);
}

// Every rank's file is the same, but only one may not write it.
TEST(Storage, PermissionMissingOnOneRankFailsOnAllRanks) {
  if (geteuid() != 0) GTEST_SKIP() << "NOT TESTED: only root may become another user";
  if (world().size() == 1)
    GTEST_SKIP()
        << "NOT TESTED in this launch: it needs a rank beside the one that makes the file; those of 2 and 4 run it";
  const Folder folder;
  for (const bool async : {false, true}) {
    save_in_mode(async, folder.path(), 1, part(1).shards(), strict());
    const bool here = world().rank() == world().size() - 1;
    if (here) become(65534);
    const auto message =
        agreed_error([&] { save_in_mode(async, folder.path(), 2, part(2).shards(), strict()); }, ExitCode::storage);
    if (here) become(0);
    EXPECT_TRUE(has(message, "(rank " + std::to_string(world().size() - 1) + ")")) << message;
    EXPECT_TRUE(has(message, "Permission denied")) << message;
    EXPECT_EQ(left_in(folder.path()), (std::vector<std::string>{"step_00000001.commit", "step_00000001.h5"}));
  }
}

TEST(Storage, ReadOnlyFolderFailsOnAllRanks) {
  const MemoryFileSystem storage(16 << 20);
  SKIP_UNLESS_MOUNTED(storage);
  save(world(), storage.path(), 1, part(1).shards(), {}, strict());
  storage.make_read_only();
  const auto message =
      agreed_error([&] { save(world(), storage.path(), 2, part(2).shards(), {}, strict()); }, ExitCode::storage);
  EXPECT_TRUE(has(message, "Read-only file system")) << message;
  Part read = part(9);
  EXPECT_TRUE(load_newest(world(), storage.path(), read.shards()).loaded);  // readable all the same
  EXPECT_TRUE(read == part(1));
}

TEST(Storage, AFileInTheFoldersPlaceFailsOnAllRanks) {
  const Folder folder;
  on_rank_0([&] { write_bytes(folder / "f", "x"); });
  const auto message =
      agreed_error([&] { save(world(), folder / "f", 2, part(2).shards(), {}, strict()); }, ExitCode::storage);
  EXPECT_TRUE(has(message, "cannot make the folder " + (folder / "f"))) << message;
}

// One rank's trouble is every rank's error, and names the rank.
TEST(Storage, AFileSizeLimitOnTheLastRankFailsOnAllRanks) {
  const Folder folder;
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  if (world().rank() == world().size() - 1) {
    rlimit small = before;
    small.rlim_cur = 1 << 20;
    setrlimit(RLIMIT_FSIZE, &small);
  }
  const auto message =
      agreed_error([&] { save(world(), folder.path(), 2, part(2).shards(), {}, strict()); }, ExitCode::storage);
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_TRUE(has(message, "ulimit -f")) << message;
  if (world().size() > 1) {
    EXPECT_TRUE(has(message, "(rank " + std::to_string(world().size() - 1) + ")")) << message;
  }
  EXPECT_TRUE(left_in(folder.path()).empty());
}

TEST(Storage, FreeBytesOfAFolderThatIsNotThereYet) {
  const Folder folder;
  EXPECT_GT(free_bytes(folder / "not/yet/there"), 0);
  EXPECT_EQ(file_size(folder / "not"), std::nullopt);
}

}  // namespace
}  // namespace fourfold::checkpoint
