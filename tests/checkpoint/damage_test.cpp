// What is damaged or half written is seen, named, and the step before is used.
#include <gtest/gtest.h>

#include <random>

#include "checkpoint/record.hpp"
#include "support.hpp"
#include "test_support.hpp"

namespace fourfold::checkpoint {
namespace {

using namespace test;

constexpr std::int64_t kOld = 5;
constexpr std::int64_t kNew = 10;

class Damage : public testing::Test {
 protected:
  Damage() {
    save(world(), folder_.path(), kOld, part(kOld).shards(), small_state(), strict());
    save(world(), folder_.path(), kNew, part(kNew).shards(), small_state(), strict());
    barrier(world(), Phase::control);
    data_ = bytes_of(file(kNew, "h5"));
    commit_ = bytes_of(file(kNew, "commit"));
    record_ = CommitRecord::from_text(commit_);
    barrier(world(), Phase::control);
  }

  static Part part(std::int64_t step) {
    return Part(small_model(), all_data(), world().rank(), static_cast<std::uint64_t>(step));
  }
  std::string file(std::int64_t step, const std::string& ending) const {
    return folder_ / ("step_000000" + std::string(step < 10 ? "0" : "") + std::to_string(step) + "." + ending);
  }

  // Loads the newest and expects the older step; returns why the newer one was passed over.
  std::string falls_back() const {
    Part read = part(99);
    const Restart restart = load_newest(world(), folder_.path(), read.shards());
    EXPECT_TRUE(restart.loaded);
    EXPECT_EQ(restart.loaded ? restart.loaded->source.step : -1, kOld);
    EXPECT_TRUE(read == part(kOld));
    EXPECT_EQ(restart.rejected.size(), 1u);
    if (restart.rejected.empty()) return "";
    EXPECT_EQ(restart.rejected[0].path, file(kNew, "h5"));
    return restart.rejected[0].why;
  }
  void expect_new() const {
    Part read = part(99);
    const Restart restart = load_newest(world(), folder_.path(), read.shards());
    ASSERT_TRUE(restart.loaded);
    EXPECT_EQ(restart.loaded->source.step, kNew);
    EXPECT_TRUE(read == part(kNew));
  }
  void restore() const {
    on_rank_0([&] {
      write_bytes(file(kNew, "h5"), data_);
      write_bytes(file(kNew, "commit"), commit_);
      std::filesystem::remove(file(kNew, "rejected"));
    });
  }
  std::string falls_back_with_flip(std::int64_t position, int bit) const {
    std::string damaged = data_;
    damaged[static_cast<std::size_t>(position)] =
        static_cast<char>(damaged[static_cast<std::size_t>(position)] ^ (1 << bit));
    on_rank_0([&] { write_bytes(file(kNew, "h5"), damaged); });
    std::string why = falls_back();
    restore();
    return why;
  }

  Folder folder_;
  std::string data_, commit_;
  CommitRecord record_;
};

TEST_F(Damage, UndamagedTheNewestLoads) {
  expect_new();
}

TEST_F(Damage, P14AFlippedBitInADatasetIsNamed) {
  std::vector<DatasetRecord> datasets = fourfold::test::sample(record_.datasets, 3);
  for (const DatasetRecord& dataset : record_.datasets)
    if (dataset.checksums.size() > 1) datasets.push_back(dataset);
  for (const DatasetRecord& dataset : datasets) {
    if (dataset.bytes == 0) continue;
    SCOPED_TRACE(dataset.name);
    EXPECT_TRUE(has(falls_back_with_flip(dataset.offset, 0), dataset.name + ": the checksum of elements 0 to "));
    const std::string last = falls_back_with_flip(dataset.offset + dataset.bytes - 1, 7);
    EXPECT_TRUE(has(last, dataset.name + ": the checksum of elements ")) << last;
    EXPECT_TRUE(has(last, " to " + std::to_string(dataset.bytes / h5::element_bytes(dataset.type) - 1) + " differs"));
  }
  expect_new();
}

TEST_F(Damage, AFlippedBitOutsideTheDatasetsIsSeenBeforeHdf5Sees) {
  std::vector<std::int64_t> outside;
  for (std::int64_t position = 0; position < record_.bytes; ++position) {
    bool inside = false;
    for (const DatasetRecord& dataset : record_.datasets)
      inside = inside || (position >= dataset.offset && position < dataset.offset + dataset.bytes);
    if (!inside) outside.push_back(position);
  }
  ASSERT_GT(outside.size(), 2000u);
  // In full one rank takes every byte. More ranks, whose rank 0 gives the same verdict, take every 37th.
  std::vector<std::int64_t> spread;
  const std::size_t stride = world().size() == 1 ? 1 : 37;
  for (std::size_t i = 0; i < outside.size(); i += stride) spread.push_back(outside[i]);
  for (const std::int64_t position : fourfold::test::sample(spread, 6))
    EXPECT_EQ(falls_back_with_flip(position, static_cast<int>(position % 8)),
              "the checksum of the bytes outside the datasets differs")
        << "byte " << position;
  expect_new();
}

TEST_F(Damage, AnyOtherLengthIsSeen) {
  std::vector<std::size_t> lengths{0, 1, data_.size() / 2, data_.size() - 1};
  for (const std::size_t length : lengths) {
    on_rank_0([&] { write_bytes(file(kNew, "h5"), data_.substr(0, length)); });
    EXPECT_EQ(falls_back(), "the file has " + std::to_string(length) + " bytes, its commit record says " +
                                std::to_string(data_.size()));
  }
  on_rank_0([&] { write_bytes(file(kNew, "h5"), data_ + "x"); });
  EXPECT_TRUE(has(falls_back(), "bytes, its commit record says"));
  on_rank_0([&] { std::filesystem::remove(file(kNew, "h5")); });
  EXPECT_EQ(falls_back(), "the file is missing");
  restore();
  expect_new();
}

TEST_F(Damage, ADamagedRecordIsSeen) {
  for (const std::size_t length : {std::size_t{0}, commit_.size() / 2}) {
    on_rank_0([&] { write_bytes(file(kNew, "commit"), commit_.substr(0, length)); });
    EXPECT_TRUE(has(falls_back(), "the commit record is damaged"));
  }
  std::string altered = commit_;
  const std::size_t place = altered.find("\"outside\"") + 13;
  altered[place] = altered[place] == '0' ? '1' : '0';
  on_rank_0([&] { write_bytes(file(kNew, "commit"), altered); });
  EXPECT_TRUE(has(falls_back(), "its seal does not fit its content"));
  restore();
  expect_new();
}

// A save that was killed at any moment leaves one of these; the next save clears them away and says so.
TEST_F(Damage, P01AnInterruptedSaveIsPassedOverAndClearedAway) {
  on_rank_0([&] {
    std::filesystem::remove(file(kNew, "commit"));
    write_bytes(file(kNew, "commit.tmp"), commit_.substr(0, 100));
  });
  EXPECT_EQ(falls_back(), "not committed: its save was interrupted");
  on_rank_0([&] {
    std::filesystem::rename(file(kNew, "h5"), file(kNew, "h5.tmp"));
    write_bytes(folder_ / "step_00000011.h5.tmp", data_.substr(0, 3000));
  });
  const Found found = find_newest(world(), folder_.path());
  ASSERT_TRUE(found.newest);
  EXPECT_EQ(found.newest->step, kOld);
  ASSERT_EQ(found.rejected.size(), 2u);
  EXPECT_EQ(found.rejected[0].path, folder_ / "step_00000011.h5.tmp");
  EXPECT_FALSE(found.rejected[0].committed);
  const SaveReport report = save(world(), folder_.path(), 12, part(12).shards(), small_state(), strict());
  if (world().rank() == 0) {
    EXPECT_TRUE(any_has(report.notes, "removed " + file(kNew, "h5.tmp")));
    EXPECT_TRUE(any_has(report.notes, "removed " + file(kNew, "commit.tmp")));
    EXPECT_TRUE(any_has(report.notes, "removed " + (folder_ / "step_00000011.h5.tmp")));
  }
  EXPECT_TRUE(find_newest(world(), folder_.path()).rejected.empty());
}

TEST_F(Damage, P05WhatFailedToLoadIsRememberedUntilToldOtherwise) {
  const DatasetRecord& dataset = record_.datasets.front();
  on_rank_0([&] {
    std::string damaged = data_;
    damaged[static_cast<std::size_t>(dataset.offset)] ^= 1;
    write_bytes(file(kNew, "h5"), damaged);
  });
  const std::string why = falls_back();
  EXPECT_TRUE(has(why, dataset.name + ": the checksum"));
  on_rank_0([&] { write_bytes(file(kNew, "h5"), data_); });
  const std::string remembered = falls_back();
  EXPECT_TRUE(has(remembered, "found damaged before")) << remembered;
  EXPECT_TRUE(has(remembered, why)) << remembered;
  on_rank_0([&] { std::filesystem::remove(file(kNew, "rejected")); });
  expect_new();
}

TEST_F(Damage, NoIntactStepIsAnErrorAndNoFreshStart) {
  on_rank_0([&] {
    write_bytes(file(kNew, "h5"), data_.substr(1));
    std::filesystem::remove(file(kOld, "h5"));
  });
  Part read = part(99);
  const auto message = agreed_error([&] { load_newest(world(), folder_.path(), read.shards()); }, ExitCode::storage);
  EXPECT_TRUE(has(message, "no usable checkpoint in " + folder_.path())) << message;
  EXPECT_TRUE(has(message, "step_00000005.h5: the file is missing")) << message;
  EXPECT_TRUE(has(message, "step_00000010.h5: the file has")) << message;
}

TEST_F(Damage, OneStepAskedForByNameIsNotReplacedByAnother) {
  const DatasetRecord& dataset = record_.datasets.front();
  const Found found = find_newest(world(), folder_.path());
  on_rank_0([&] {
    std::string damaged = data_;
    damaged[static_cast<std::size_t>(dataset.offset)] ^= 1;
    write_bytes(file(kNew, "h5"), damaged);
  });
  Part read = part(99);
  const auto message = agreed_error([&] { load(world(), *found.newest, read.shards()); }, ExitCode::storage);
  EXPECT_TRUE(has(message, "is damaged: " + dataset.name)) << message;
}

}  // namespace
}  // namespace fourfold::checkpoint
