#include "checkpoint/record.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace fourfold::checkpoint {
namespace {

CommitRecord example() {
  CommitRecord record;
  record.run = "a \"run\"";
  record.step = 100;
  record.file = "step_00000100.h5";
  record.bytes = 9000000;
  record.outside = 0xfedcba9876543210u;
  record.datasets.push_back(
      {"/params/w", h5::ElementType::fp32, {1100, 1000}, 4096, 4400000, {1, 0xffffffffffffffffu}});
  record.datasets.push_back({"/params/s", h5::ElementType::fp64, {}, 2048, 8, {17}});
  record.datasets.push_back({"/params/none", h5::ElementType::fp64, {0, 3}, 0, 0, {}});
  return record;
}

TEST(Record, ComesBack) {
  const CommitRecord record = example();
  const CommitRecord read = CommitRecord::from_text(record.to_text());
  EXPECT_EQ(read.to_text(), record.to_text());
  EXPECT_EQ(read.run, record.run);
  EXPECT_EQ(read.outside, record.outside);
  ASSERT_EQ(read.datasets.size(), 3u);
  EXPECT_EQ(read.datasets[0].checksums, record.datasets[0].checksums);
  EXPECT_EQ(read.datasets[0].shape, record.datasets[0].shape);
}

TEST(Record, NoFlippedBitAndNoTruncationChangesWhatItSays) {
  const std::string text = example().to_text();
  int refused = 0;
  for (std::size_t i = 0; i < text.size(); ++i)
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = text;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      try {
        EXPECT_EQ(CommitRecord::from_text(damaged).to_text(), text) << "byte " << i << " bit " << bit;
      } catch (const Error&) {
        ++refused;
      }
    }
  EXPECT_GT(refused, static_cast<int>(text.size()) * 4);
  for (std::size_t length = 0; length + 2 < text.size(); ++length)
    EXPECT_THROW(CommitRecord::from_text(text.substr(0, length)), Error);
}

TEST(Record, RefusesOverlapsOverhangsAndNewerFormats) {
  const auto refused = [](const CommitRecord& record) {
    try {
      CommitRecord::from_text(record.to_text());
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refused(example()), "accepted");
  CommitRecord overlap = example();
  overlap.datasets[1].offset = 4090;
  EXPECT_NE(refused(overlap).find("/params/w overlaps"), std::string::npos);
  CommitRecord overhang = example();
  overhang.bytes = 4404095;
  EXPECT_NE(refused(overhang).find("/params/w overlaps another dataset or leaves the file"), std::string::npos);
  CommitRecord sums = example();
  sums.datasets[0].checksums.pop_back();
  EXPECT_NE(refused(sums).find("does not fit its shape"), std::string::npos);
  CommitRecord newer = example();
  newer.format = kFormat + 1;
  EXPECT_NE(refused(newer).find("newer Fourfold"), std::string::npos);
}

}  // namespace
}  // namespace fourfold::checkpoint
