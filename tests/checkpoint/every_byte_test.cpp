// A flipped bit in every byte, and every shorter length, of the two files of a step, however it was saved: seen, the
// dataset named where it lies in one, and the step before is used. In full one rank takes all of them, four every 37th.
#include <fcntl.h>
#include <unistd.h>

#include "checkpoint/record.hpp"
#include "support.hpp"
#include "test_support.hpp"

namespace fourfold::checkpoint {
namespace {

using namespace test;

class EveryByte : public testing::TestWithParam<bool> {
 protected:
  EveryByte() {
    for (const std::int64_t step : {1, 2})
      save_in_mode(GetParam(), folder_.path(), step, part(step).shards(), options());
    barrier(world(), Phase::control);
    record_ = CommitRecord::from_text(bytes_of(commit_));
  }
  static SaveOptions options() {
    SaveOptions options = strict();
    options.transfer_bytes = 4096;
    return options;
  }
  static Part part(std::int64_t step) {
    const std::vector<Tensor> model = {{"/params/w", ElementType::fp32, {6, 5}},
                                       {"/params/b", ElementType::bf16, {7}},
                                       {"/params/n", ElementType::int32, {}},
                                       {"/optimizer/m/w", ElementType::fp64, {6, 5}}};
    return Part(model, all_data(), world().rank(), static_cast<std::uint64_t>(step));
  }
  // Why the newest was passed over.
  std::string falls_back() const {
    Part read = part(9);
    LoadOptions load;
    load.transfer_bytes = 4096;
    const Restart restart = load_newest(world(), folder_.path(), read.shards(), load);
    EXPECT_EQ(restart.loaded ? restart.loaded->source.step : -1, 1);
    EXPECT_TRUE(read == part(1));
    EXPECT_EQ(restart.rejected.size(), 1u);
    on_rank_0([&] { unlink((folder_ / "step_00000002.rejected").c_str()); });
    return restart.rejected.empty() ? "" : restart.rejected[0].why;
  }
  // The positions that this run looks at.
  static std::vector<std::int64_t> some_of(std::int64_t count) {
    std::vector<std::int64_t> positions;
    for (std::int64_t at = 0; at < count; at += world().size() == 1 ? 1 : 37) positions.push_back(at);
    return fourfold::test::sample(positions, world().size() == 1 ? 40 : 10);
  }
  // With a bit of the byte flipped; the byte comes back.
  std::string with_flip(const std::string& path, std::int64_t at) const {
    const auto turn = [&] {
      const int file = open(path.c_str(), O_RDWR);
      unsigned char byte = 0;
      EXPECT_EQ(pread(file, &byte, 1, at), 1);
      byte = static_cast<unsigned char>(byte ^ (1u << (at % 8)));
      EXPECT_EQ(pwrite(file, &byte, 1, at), 1);
      close(file);
    };
    on_rank_0(turn);
    std::string why = falls_back();
    on_rank_0(turn);
    return why;
  }
  // Truncated; the bytes come back.
  std::string with_length(const std::string& path, std::int64_t length) const {
    const std::string whole = bytes_of(path);
    on_rank_0([&] { EXPECT_EQ(truncate(path.c_str(), length), 0); });
    std::string why = falls_back();
    on_rank_0([&] { write_bytes(path, whole); });
    return why;
  }
  std::string expected_at(std::int64_t at) const {
    for (const DatasetRecord& dataset : record_.datasets)
      if (at >= dataset.offset && at < dataset.offset + dataset.bytes)
        return dataset.name + ": the checksum of elements 0 to " +
               std::to_string(dataset.bytes / h5::element_bytes(dataset.type) - 1) + " differs";
    return "the checksum of the bytes outside the datasets differs";
  }
  void expect_undamaged() const {
    Part read = part(9);
    const Restart restart = load_newest(world(), folder_.path(), read.shards());
    EXPECT_EQ(restart.loaded ? restart.loaded->source.step : -1, 2);
    EXPECT_TRUE(read == part(2));
  }
  void report(const char* what, std::size_t count, const std::string& path) const {
    if (world().rank() == 0)
      std::printf("%zu %s of %zu bytes of %s\n", count, what, bytes_of(path).size(), path.c_str());
  }

  Folder folder_;
  const std::string data_ = folder_ / "step_00000002.h5", commit_ = folder_ / "step_00000002.commit";
  CommitRecord record_;
};

TEST_P(EveryByte, P14AFlippedBitIsSeen) {
  const std::vector<std::int64_t> places = some_of(record_.bytes);
  for (const std::int64_t at : places) ASSERT_EQ(with_flip(data_, at), expected_at(at)) << "byte " << at;
  report("flips", places.size(), data_);
  expect_undamaged();
}

TEST_P(EveryByte, P14AFlippedBitOfTheRecordIsSeen) {
  const std::vector<std::int64_t> places = some_of(std::ssize(bytes_of(commit_)));
  for (const std::int64_t at : places) {
    const std::string why = with_flip(commit_, at);
    ASSERT_TRUE(has(why, "the commit record is damaged") || has(why, "newer Fourfold")) << "byte " << at << ": " << why;
  }
  report("flips", places.size(), commit_);
  expect_undamaged();
}

TEST_P(EveryByte, P01AnyOtherLengthIsSeen) {
  const std::vector<std::int64_t> lengths = some_of(record_.bytes);
  for (const std::int64_t length : lengths)
    ASSERT_EQ(with_length(data_, length), "the file has " + std::to_string(length) + " bytes, its commit record says " +
                                              std::to_string(record_.bytes));
  report("lengths", lengths.size(), data_);
  const std::vector<std::int64_t> of_record = some_of(std::ssize(bytes_of(commit_)) - 1);  // its last is a line's end
  for (const std::int64_t length : of_record)
    ASSERT_TRUE(has(with_length(commit_, length), "the commit record is damaged")) << length;
  report("lengths", of_record.size(), commit_);
  expect_undamaged();
}

INSTANTIATE_TEST_SUITE_P(Saved, EveryByte, testing::Bool(),
                         [](const auto& async) { return async.param ? "asynchronously" : "synchronously"; });

}  // namespace
}  // namespace fourfold::checkpoint
