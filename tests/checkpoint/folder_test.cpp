// The folder by itself: names, rotation, leftovers, without HDF5.
#include "checkpoint/folder.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.hpp"
#include "checkpoint/posix.hpp"

namespace fourfold::checkpoint {
namespace {

class FolderTest : public testing::Test {
 protected:
  FolderTest() : folder_((std::filesystem::temp_directory_path() / ("fourfold_folder_" + std::to_string(getpid())))) {
    std::filesystem::create_directories(folder_);
  }
  ~FolderTest() override { std::filesystem::remove_all(folder_); }

  void touch(const std::string& name) const { std::ofstream(folder_ + "/" + name) << "x"; }
  void commit(std::int64_t step, const std::string& run) const {
    const StepFiles files(folder_, step);
    std::ofstream(files.data) << "data";
    CommitRecord record;
    record.run = run;
    record.step = step;
    record.bytes = 4;
    record.outside = checksum_outside(files.data, record);
    write_durably(files.commit, record.to_text());
  }
  std::vector<std::int64_t> committed() const { return steps_with(folder_, ".commit"); }

  std::string folder_;
};

SaveOptions keep(std::int64_t count, std::optional<std::int64_t> resumed_from = {}) {
  SaveOptions options;
  options.run = "mine";
  options.keep = count;
  options.resumed_from = resumed_from;
  return options;
}

using Steps = std::vector<std::int64_t>;

TEST_F(FolderTest, NamesAreNumbers) {
  EXPECT_EQ(step_named("step_00000100.commit", ".commit"), 100);
  EXPECT_EQ(step_named("step_123456789012.h5", ".h5"), 123456789012);
  EXPECT_EQ(StepFiles("f", 123456789012).data, "f/step_123456789012.h5");
  for (const char* name :
       {"step_.commit", "step_1x.commit", "step_-1.commit", "step_1.commit.tmp", "xstep_1.commit", ""})
    EXPECT_EQ(step_named(name, ".commit"), std::nullopt) << name;
}

TEST_F(FolderTest, P05RotationGoesByNumberNotByName) {
  for (const std::int64_t step : {99999999, 100000000, 9000, 10000}) commit(step, "mine");
  rotate(folder_, 100000000, keep(2));
  EXPECT_EQ(committed(), (Steps{99999999, 100000000}));
  EXPECT_FALSE(std::filesystem::exists(StepFiles(folder_, 9000).data));
}

TEST_F(FolderTest, P05RotationCountsCommittedIntactStepsOfThisRunOnly) {
  for (const std::int64_t step : {10, 20, 30, 40}) commit(step, "mine");
  commit(15, "other");
  commit(5000, "other");
  commit(50, "mine");  // later than what was just saved: of a future that was thrown away
  touch("step_00000030.rejected");
  touch("step_00000035.h5");
  rotate(folder_, 40, keep(2));
  EXPECT_EQ(committed(), (Steps{15, 20, 30, 40, 50, 5000}));
  EXPECT_TRUE(std::filesystem::exists(StepFiles(folder_, 35).data));
}

TEST_F(FolderTest, P05RotationNeverRemovesWhatTheRunResumedFrom) {
  for (const std::int64_t step : {10, 20, 30, 40}) commit(step, "mine");
  const auto notes = rotate(folder_, 40, keep(1, 20));
  EXPECT_EQ(committed(), (Steps{20, 40}));
  EXPECT_EQ(notes.size(), 2u);
  EXPECT_NE(notes[0].find("step_00000010.h5"), std::string::npos);
}

TEST_F(FolderTest, KeepZeroKeepsAll) {
  for (const std::int64_t step : {10, 20, 30}) commit(step, "mine");
  rotate(folder_, 30, keep(0));
  EXPECT_EQ(committed().size(), 3u);
}

TEST_F(FolderTest, P01LeftoversGoCommittedStepsStay) {
  commit(10, "mine");
  for (const char* name : {"step_00000020.h5", "step_00000030.h5.tmp", "step_00000040.commit",
                           "step_00000050.commit.tmp", "notes.txt", "step_00000010.rejected"})
    touch(name);
  const auto notes = remove_leftovers(folder_);
  EXPECT_EQ(notes.size(), 4u);
  EXPECT_EQ(file_names(folder_), (std::vector<std::string>{".", "..", "notes.txt", "step_00000010.commit",
                                                           "step_00000010.h5", "step_00000010.rejected"}));
}

TEST_F(FolderTest, VerifiedRecordSaysWhy) {
  commit(10, "mine");
  EXPECT_EQ(verified_record(folder_, 10).run, "mine");
  const StepFiles files(folder_, 10);
  const auto why = [&] {
    try {
      verified_record(folder_, 10);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  std::ofstream(files.data) << "dat!";
  EXPECT_EQ(why(), "the checksum of the bytes outside the datasets differs");
  std::ofstream(files.data) << "dataX";
  EXPECT_EQ(why(), "the file has 5 bytes, its commit record says 4");
  std::filesystem::remove(files.data);
  EXPECT_EQ(why(), "the file is missing");
  std::filesystem::rename(files.commit, StepFiles(folder_, 11).commit);
  try {
    verified_record(folder_, 11);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), "its commit record is of step 10");
  }
}

TEST_F(FolderTest, DurableWritesLeaveNoTemporary) {
  write_durably(folder_ + "/a", "first");
  write_durably(folder_ + "/a", "second");
  EXPECT_EQ(read_file(folder_ + "/a"), "second");
  EXPECT_EQ(file_names(folder_).size(), 3u);
}

}  // namespace
}  // namespace fourfold::checkpoint
