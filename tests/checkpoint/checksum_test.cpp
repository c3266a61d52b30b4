#include "checkpoint/checksum.hpp"

#include <gtest/gtest.h>

#include <random>

namespace fourfold::checkpoint {
namespace {

std::vector<float> numbers(std::int64_t count) {
  std::mt19937 engine(7);
  std::vector<float> data(static_cast<std::size_t>(count));
  for (float& value : data) value = std::generate_canonical<float, 24>(engine);
  return data;
}

std::vector<std::uint64_t> sums_of(const std::vector<float>& all, const std::vector<std::int64_t>& shape,
                                   const std::vector<Shard>& shards) {
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(chunks_of(whole_shard(shape).size())));
  for (const Shard& shard : shards) {
    std::vector<float> mine;
    for (std::int64_t i = 0; i < shard.size(); ++i)
      mine.push_back(all[static_cast<std::size_t>(shard.global_index(i))]);
    const std::int64_t half = shard.size() / 2;  // in two parts, as two replicas would
    add_checksums(shard, {0, half}, mine.data(), 4, sums);
    add_checksums(shard, {half, shard.size()}, mine.data() + half, 4, sums);
  }
  return sums;
}

std::vector<Shard> cut(const std::vector<std::int64_t>& shape, std::int64_t row, std::int64_t col, std::int64_t depth) {
  std::vector<Shard> shards;
  for (std::int64_t r = 0; r < row; ++r)
    for (std::int64_t c = 0; c < col; ++c)
      for (std::int64_t d = 0; d < depth; ++d) {
        Shard shard = whole_shard(shape);
        shard.box[0] = part(shape[0], row, r);
        shard.box[1] = part(shape[1], col, c);
        shard.flat = part(box_size(shard.box), depth, d);
        shards.push_back(shard);
      }
  return shards;
}

TEST(Checksum, DoesNotShowTheGrid) {
  const std::vector<std::int64_t> shape{1500, 1001};  // two chunks
  const std::vector<float> all = numbers(1500 * 1001);
  const auto whole = sums_of(all, shape, {whole_shard(shape)});
  EXPECT_EQ(whole.size(), 2u);
  EXPECT_NE(whole[0], whole[1]);
  EXPECT_EQ(sums_of(all, shape, cut(shape, 3, 1, 1)), whole);
  EXPECT_EQ(sums_of(all, shape, cut(shape, 1, 4, 1)), whole);
  EXPECT_EQ(sums_of(all, shape, cut(shape, 2, 3, 5)), whole);
  const std::vector<std::int64_t> cube{4, 6, 7};
  const std::vector<float> few = numbers(4 * 6 * 7);
  EXPECT_EQ(sums_of(few, cube, cut(cube, 3, 2, 3)), sums_of(few, cube, {whole_shard(cube)}));
}

TEST(Checksum, EveryBitCountsAndPlacesCount) {
  const std::vector<std::int64_t> shape{31};
  std::vector<std::uint32_t> data(31);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::uint32_t>(i * i);
  const auto sum = [&] {
    std::vector<std::uint64_t> sums(1);
    add_checksums(whole_shard(shape), {0, 31}, data.data(), 4, sums);
    return sums[0];
  };
  const std::uint64_t before = sum();
  for (std::uint32_t& value : data)
    for (int bit = 0; bit < 32; ++bit) {
      value ^= 1u << bit;
      EXPECT_NE(sum(), before);
      value ^= 1u << bit;
    }
  std::swap(data[3], data[4]);
  EXPECT_NE(sum(), before);
}

TEST(Checksum, BytesCountByPosition) {
  const std::vector<unsigned char> bytes{1, 2, 3, 4, 5};
  const std::span<const unsigned char> all(bytes);
  EXPECT_EQ(checksum_bytes(all, 100), checksum_bytes(all.first(2), 100) + checksum_bytes(all.subspan(2), 102));
  EXPECT_NE(checksum_bytes(all, 100), checksum_bytes(all, 101));
}

TEST(Checksum, CoverageCountsEachElementOnce) {
  const std::vector<std::int64_t> shape{5, 7};
  Coverage sum;
  for (const Shard& shard : cut(shape, 2, 3, 2)) {
    const Coverage one = coverage(shard, {0, shard.size()});
    sum.elements += one.elements;
    sum.index_sum += one.index_sum;
  }
  EXPECT_EQ(sum.elements, 35u);
  EXPECT_EQ(sum.index_sum, 35u * 34u / 2u);
}

// The numbers themselves are part of the file format: a change of the hash must not pass unseen. (Computed apart, in
// Python, from the formula in checksum.hpp.)
TEST(Checksum, IsTheOneOfFormat1) {
  const std::vector<std::uint16_t> data{0, 1, 65535};
  std::vector<std::uint64_t> sums(1);
  add_checksums(whole_shard({3}), {0, 3}, data.data(), 2, sums);
  EXPECT_EQ(sums[0], 0x5333bb0a179c0b07u);
}

}  // namespace
}  // namespace fourfold::checkpoint
