// The boxes of a flat part of a shard: disjoint, in order, exactly its elements, at most 2 * dims - 1.
#include "h5/selection.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace fourfold::h5 {
namespace {

std::vector<std::int64_t> elements_of(const std::vector<Box>& boxes, const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> all;
  for (const Box& box : boxes) {
    const Shard piece{shape, box, {0, box_size(box)}};
    for (std::int64_t i = 0; i < piece.size(); ++i) all.push_back(piece.global_index(i));
  }
  return all;
}

void check_all_parts(const std::vector<std::int64_t>& shape, const Box& box) {
  const Shard shard{shape, box, {0, box_size(box)}};
  const auto most = std::max<std::size_t>(1, 2 * shape.size() - 1);
  for (std::int64_t begin = 0; begin <= shard.size(); ++begin)
    for (std::int64_t end = begin; end <= shard.size(); ++end) {
      const std::vector<Box> boxes = boxes_of(shard, {begin, end});
      EXPECT_LE(boxes.size(), most);
      std::vector<std::int64_t> expected;
      for (std::int64_t i = begin; i < end; ++i) expected.push_back(shard.global_index(i));
      ASSERT_EQ(elements_of(boxes, shape), expected) << "elements " << begin << " to " << end;
    }
}

TEST(Selection, EveryPartOfBoxesOfOneToFourDims) {
  check_all_parts({}, {});
  check_all_parts({7}, {{2, 6}});
  check_all_parts({4, 5}, {{1, 4}, {0, 5}});
  check_all_parts({4, 5}, {{0, 4}, {2, 3}});
  check_all_parts({3, 4, 5}, {{0, 3}, {1, 4}, {2, 5}});
  check_all_parts({3, 4, 5}, {{1, 2}, {0, 4}, {0, 5}});
  check_all_parts({2, 3, 2, 3}, {{0, 2}, {0, 2}, {0, 2}, {1, 3}});
  check_all_parts({3, 0}, {{0, 3}, {0, 0}});
}

TEST(Selection, AFlatShardIsCountedFromItsOwnBegin) {
  const Shard shard{{6, 6}, {{0, 6}, {2, 5}}, {4, 11}};
  std::vector<std::int64_t> expected;
  for (std::int64_t i = 1; i < 6; ++i) expected.push_back(shard.global_index(i));
  EXPECT_EQ(elements_of(boxes_of(shard, {1, 6}), shard.shape), expected);
}

TEST(Selection, APartOutsideTheShardIsOurBug) {
  EXPECT_ANY_THROW(boxes_of(whole_shard({4}), {0, 5}));
}

}  // namespace
}  // namespace fourfold::h5
