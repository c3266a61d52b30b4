// Parallel files: shards of every cut come back, empty ranks and split transfers included; equal calls give equal
// bytes; errors name call, file and object.
#include "h5/file.hpp"

#include <gtest/gtest.h>
#include <hdf5.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/error.hpp"
#include "comm/agree.hpp"
#include "comm/collectives.hpp"
#include "comm/launch.hpp"
#include "comm/mpi_handle.hpp"
#include "h5/transfer.hpp"
#include "mpi_test.hpp"

namespace fourfold::h5 {
namespace {

const Communicator& world() {
  return test::launch().world();
}

// A folder of this test, made by rank 0, removed at the end.
class Folder {
 public:
  Folder() {
    std::string name;
    if (world().rank() == 0) {
      name = (std::filesystem::temp_directory_path() / ("fourfold_h5_" + std::to_string(getpid()))).string();
      std::filesystem::create_directories(name);
    }
    path_ = broadcast_string(world(), name);
  }
  ~Folder() {
    barrier(world(), Phase::control);
    if (world().rank() == 0) std::filesystem::remove_all(path_);
  }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

template <class T>
T value_of(std::int64_t index) {
  return static_cast<T>(3 * index + 1);
}

// This rank's shard of a tensor: the first dim cut over the ranks, or the whole cut flat.
Shard cut(const std::vector<std::int64_t>& shape, bool flat, int ranks, int rank) {
  Shard shard = whole_shard(shape);
  if (shape.empty() || flat) {
    shard.flat = part(shard.global_size(), ranks, rank);
    return shard;
  }
  shard.box[0] = part(shape[0], ranks, rank);
  shard.flat = {0, box_size(shard.box)};
  return shard;
}

template <class T>
std::vector<T> values(const Shard& shard) {
  std::vector<T> data;
  for (std::int64_t i = 0; i < shard.size(); ++i) data.push_back(value_of<T>(shard.global_index(i)));
  return data;
}

Rounds agreed_rounds(std::int64_t elements, ElementType type, std::int64_t limit) {
  std::int64_t count = rounds_needed(elements, type, limit);
  all_reduce_max<std::int64_t>(world(), {&count, 1}, Phase::checkpoint);
  return {count, limit};
}

template <class T>
void round_trip(const std::string& path, ElementType type, const std::vector<std::int64_t>& shape, bool flat,
                std::int64_t limit) {
  const Shard mine = cut(shape, flat, world().size(), world().rank());
  std::vector<T> data = values<T>(mine);
  {
    File file = File::create(world(), path);
    Dataset dataset = file.create_dataset("/params/deep/x", type, shape);
    EXPECT_EQ(write_shard(dataset, mine, {0, mine.size()}, data.data(), agreed_rounds(mine.size(), type, limit)), "");
    dataset.close();
    file.close();
  }
  // Read back under another cut, and whole without MPI.
  const Shard other = cut(shape, !flat, world().size(), world().size() - 1 - world().rank());
  std::vector<T> read(static_cast<std::size_t>(other.size()), T{});
  {
    File file = File::open(world(), path);
    Dataset dataset = file.dataset("/params/deep/x");
    EXPECT_EQ(dataset.type(), type);
    EXPECT_EQ(dataset.shape(), shape);
    EXPECT_EQ(read_shard(dataset, other, {0, other.size()}, read.data(), agreed_rounds(other.size(), type, limit)), "");
    dataset.close();
    file.close();
  }
  EXPECT_EQ(read, values<T>(other));
  const File file = File::open_serial(path);
  const Dataset dataset = file.dataset("/params/deep/x");
  const Shard whole = whole_shard(shape);
  std::vector<T> all(static_cast<std::size_t>(whole.size()));
  const std::int64_t needed = rounds_needed(whole.size(), type, limit);
  EXPECT_EQ(read_shard(dataset, whole, {0, whole.size()}, all.data(), {needed, limit}), "");
  EXPECT_EQ(all, values<T>(whole));
  // The bytes lie where offset() says.
  const std::string raw = bytes_of(path);
  ASSERT_GE(static_cast<std::int64_t>(raw.size()), dataset.offset() + dataset.bytes());
  EXPECT_EQ(std::memcmp(raw.data() + dataset.offset(), all.data(), all.size() * sizeof(T)), 0);
}

TEST(File, ShardsComeBackUnderEveryCutAndLimit) {
  const Folder folder;
  const std::string path = folder.file("x.h5");
  for (const std::int64_t limit : {std::int64_t{8}, std::int64_t{4096}, std::int64_t{1} << 26})
    for (const bool flat : {false, true}) {
      SCOPED_TRACE("limit " + std::to_string(limit) + (flat ? ", flat" : ", boxes"));
      round_trip<double>(path, ElementType::fp64, {5}, flat, limit);  // fewer elements than ranks
      round_trip<double>(path, ElementType::fp64, {}, flat, limit);
      round_trip<float>(path, ElementType::fp32, {3, 5, 2}, flat, limit);
      round_trip<std::uint16_t>(path, ElementType::bf16, {7, 3}, flat, limit);
      round_trip<std::int64_t>(path, ElementType::int64, {2, 2}, flat, limit);
      round_trip<std::int32_t>(path, ElementType::int32, {0, 4}, flat, limit);  // no elements at all
    }
  round_trip<float>(path, ElementType::fp32, {130, 257}, false, 4096);
  round_trip<float>(path, ElementType::fp32, {130, 257}, true, 4096);
}

TEST(File, TextsNumbersAndNames) {
  const Folder folder;
  const std::string path = folder.file("x.h5");
  File file = File::create(world(), path);
  file.write_text("/state/deck", "run: {steps: 3}\n");
  file.write_text("/state/empty", "");
  file.write_number("/state", "step", std::int64_t{1} << 40);
  file.write_number("/state", "rate", 0.1);
  file.create_dataset("/params/b", ElementType::fp32, {2}).close();
  file.create_dataset("/params/a", ElementType::fp32, {2}).close();
  file.close();
  const auto look = [](const File& opened) {
    EXPECT_EQ(opened.read_text("/state/deck"), "run: {steps: 3}\n");
    EXPECT_EQ(opened.read_text("/state/empty"), "");
    const std::map<std::string, Number> numbers{{"rate", 0.1}, {"step", std::int64_t{1} << 40}};
    EXPECT_EQ(opened.read_numbers("/state"), numbers);
    EXPECT_EQ(opened.list("/"), (std::vector<std::string>{"/params/a", "/params/b", "/state/deck", "/state/empty"}));
    EXPECT_EQ(opened.list("/params"), (std::vector<std::string>{"/params/a", "/params/b"}));
    EXPECT_TRUE(opened.list("/optimizer/m").empty());
  };
  File parallel = File::open(world(), path);
  look(parallel);
  parallel.close();
  look(File::open_serial(path));
}

TEST(File, EqualCallsGiveEqualBytesWhateverTheRanksAndTheTime) {
  const Folder folder;
  const std::vector<std::int64_t> shape{37, 11};
  const auto write = [&](const std::string& path, const Communicator& group, bool flat) {
    const Shard mine = cut(shape, flat, group.size(), group.rank());
    const std::vector<float> data = values<float>(mine);
    File file = File::create(group, path);
    for (int i = 0; i < 40; ++i) {
      Dataset dataset = file.create_dataset("/params/x" + std::to_string(i), ElementType::fp32, shape);
      write_shard(dataset, mine, {0, mine.size()}, data.data(), {1, 1 << 26});
      dataset.close();
    }
    file.write_number("/state", "step", std::int64_t{3});
    file.write_text("/state/deck", "text");
    file.close();
  };
  write(folder.file("a.h5"), world(), false);
  usleep(1100000);  // object times, if they were on, would count seconds
  write(folder.file("b.h5"), world(), true);
  const Communicator alone(world(), {world().rank()}, "self");
  if (world().rank() == 0) write(folder.file("c.h5"), alone, false);
  barrier(world(), Phase::control);
  const std::string first = bytes_of(folder.file("a.h5"));
  EXPECT_GT(first.size(), 40u * 37 * 11 * 4);
  EXPECT_TRUE(first == bytes_of(folder.file("b.h5")));
  EXPECT_TRUE(first == bytes_of(folder.file("c.h5")));
}

TEST(File, ErrorsNameCallFileAndObject) {
  const Folder folder;
  const auto message = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::storage);
      return error.what();
    }
    return "no error";
  };
  const std::string path = folder.file("x.h5");
  File file = File::create(world(), path);
  file.create_dataset("/params/x", ElementType::fp32, {3}).close();
  EXPECT_NE(message([&] { file.dataset("/params/y"); }).find("H5Dopen2 failed on " + path + ":/params/y: "),
            std::string::npos);
  const std::string twice = message([&] { file.create_dataset("/params/x", ElementType::fp32, {3}); });
  EXPECT_NE(twice.find("H5Dcreate2 failed on " + path + ":/params/x: "), std::string::npos);
  EXPECT_NE(twice.find("name already exists"), std::string::npos) << twice;
  file.close();
  EXPECT_NE(message([&] { File::open_serial(folder.file("none.h5")); }).find("H5Fopen failed on"), std::string::npos);
  EXPECT_NE(message([&] { File::open(world(), folder.file("none.h5")); }).find("H5Fopen failed on"), std::string::npos);
  EXPECT_NE(message([&] { File::create(world(), folder.file("no/x.h5")); }).find("H5Fcreate failed on"),
            std::string::npos);
}

TEST(File, ClosingWhileADatasetIsOpenIsAnError) {
  const Folder folder;
  File file = File::create(world(), folder.file("x.h5"));
  Dataset dataset = file.create_dataset("/x", ElementType::fp32, {3});
  EXPECT_ANY_THROW(file.close());
  dataset.close();
  file.close();
}

// HDF5's own data conversion ends collective mode; the cause is seen and named.
TEST(Transfer, AConversionIsNamedAsNotCollective) {
  const Folder folder;
  File file = File::create(world(), folder.file("x.h5"));
  Dataset dataset = file.create_dataset("/x", ElementType::fp32, {8});
  const hid_t properties = H5Pcreate(H5P_DATASET_XFER);
  H5Pset_dxpl_mpio(properties, H5FD_MPIO_COLLECTIVE);
  const std::vector<double> data(8, 1.0);
  ASSERT_GE(H5Dwrite(dataset.id(), H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, properties, data.data()), 0);
  EXPECT_EQ(not_collective_cause(properties, "x"), "data type conversion");
  H5Pclose(properties);
  dataset.close();
  file.close();
}

TEST(Transfer, AForeignTypeAndLayoutAreRefused) {
  const Folder folder;
  const std::string path = folder.file("x.h5");
  if (world().rank() == 0) {
    const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    const hsize_t size = 4;
    const hid_t space = H5Screate_simple(1, &size, nullptr);
    H5Dclose(H5Dcreate2(file, "big_endian", H5T_IEEE_F32BE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    const hid_t chunked = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(chunked, 1, &size);
    H5Dclose(H5Dcreate2(file, "chunked", H5T_IEEE_F32LE, space, H5P_DEFAULT, chunked, H5P_DEFAULT));
    H5Pclose(chunked);
    H5Sclose(space);
    H5Fclose(file);
  }
  barrier(world(), Phase::control);
  const File file = File::open_serial(path);
  EXPECT_THROW(file.dataset("/big_endian"), Error);
  EXPECT_THROW(file.dataset("/chunked"), Error);
}

TEST(Transfer, RoundsCountElementsWholly) {
  EXPECT_EQ(rounds_needed(0, ElementType::fp32, 4096), 1);
  EXPECT_EQ(rounds_needed(1024, ElementType::fp32, 4096), 1);
  EXPECT_EQ(rounds_needed(1025, ElementType::fp32, 4096), 2);
  EXPECT_EQ(rounds_needed(std::int64_t{1} << 40, ElementType::fp64, 1 << 30), 1 << 13);
  EXPECT_ANY_THROW(rounds_needed(1, ElementType::fp32, std::int64_t{1} << 31));
}

}  // namespace
}  // namespace fourfold::h5
