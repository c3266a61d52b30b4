// How lengths and tensors are cut, against brute force.
#include "grid/partition.hpp"

#include <gtest/gtest.h>

#include <random>

#include "base/error.hpp"
#include "test_support.hpp"

namespace fourfold {
namespace {

TEST(Part, TilesTheLengthAndDiffersByAtMostOne) {
  for (std::int64_t length = 0; length <= 40; ++length) {
    for (std::int64_t parts = 1; parts <= 45; ++parts) {
      std::int64_t at = 0;
      std::int64_t before = length + 1;
      for (std::int64_t index = 0; index < parts; ++index) {
        const Range range = part(length, parts, index);
        ASSERT_EQ(range.begin, at) << length << " in " << parts << ", part " << index;
        ASSERT_LE(range.size(), before) << "longer parts come first";
        ASSERT_GE(range.size(), length / parts);
        ASSERT_LE(range.size(), (length + parts - 1) / parts);
        ASSERT_EQ(range.empty(), range.size() == 0);
        before = range.size();
        at = range.end;
      }
      ASSERT_EQ(at, length);
    }
  }
}

TEST(Part, SixtyFourBitsAndErrors) {
  const std::int64_t length = (std::int64_t{1} << 62) + 1;
  EXPECT_EQ(part(length, 2, 0), (Range{0, (length + 1) / 2}));
  EXPECT_EQ(part(length, 2, 1), (Range{(length + 1) / 2, length}));
  EXPECT_THROW(part(-1, 2, 0), Error);
  EXPECT_THROW(part(4, 0, 0), Error);
  EXPECT_THROW(part(4, 2, 2), Error);
  EXPECT_THROW(part(4, 2, -1), Error);
}

TEST(Intersect, RangesAgainstMembership) {
  for (std::int64_t a = 0; a <= 6; ++a) {
    for (std::int64_t b = a; b <= 6; ++b) {
      for (std::int64_t c = 0; c <= 6; ++c) {
        for (std::int64_t d = c; d <= 6; ++d) {
          const Range common = intersect(Range{a, b}, Range{c, d});
          ASSERT_LE(common.begin, common.end);
          std::int64_t members = 0;
          for (std::int64_t x = 0; x < 6; ++x) {
            const bool in_both = a <= x && x < b && c <= x && x < d;
            ASSERT_EQ(common.begin <= x && x < common.end, in_both);
            members += in_both ? 1 : 0;
          }
          ASSERT_EQ(common.size(), members);
        }
      }
    }
  }
}

TEST(Intersect, Boxes) {
  const Box a{{0, 4}, {2, 6}};
  EXPECT_EQ(intersect(a, Box{{3, 9}, {0, 3}}), (Box{{3, 4}, {2, 3}}));
  EXPECT_EQ(box_size(intersect(a, Box{{4, 9}, {0, 3}})), 0);
  EXPECT_EQ(intersect(Box{}, Box{}), Box{});
  EXPECT_THROW(intersect(a, Box{{0, 1}}), Error);
}

TEST(Shard, ScalarsAndEmptyTensors) {
  EXPECT_EQ(whole_shard({}).size(), 1);
  EXPECT_EQ(whole_shard({}).global_size(), 1);
  EXPECT_EQ(whole_shard({}).global_index(0), 0);
  EXPECT_EQ(whole_shard({3, 0, 2}).size(), 0);
  EXPECT_EQ(whole_shard({3, 0, 2}).global_size(), 0);
  EXPECT_THROW(whole_shard({3, 0, 2}).global_index(0), Error);
  EXPECT_THROW(whole_shard({3}).global_index(3), Error);
  EXPECT_THROW(whole_shard({3}).global_index(-1), Error);
  const std::int64_t wide = std::int64_t{1} << 20;
  EXPECT_EQ(whole_shard({wide, wide, 8}).global_index(wide * wide * 8 - 1), wide * wide * 8 - 1);
}

// The global indices of a box in row-major order, by walking the whole tensor.
std::vector<std::int64_t> indices_of_box(const std::vector<std::int64_t>& shape, const Box& box) {
  std::vector<std::int64_t> indices;
  const std::int64_t elements = whole_shard(shape).size();
  for (std::int64_t index = 0; index < elements; ++index) {
    std::int64_t rest = index;
    bool inside = true;
    for (std::size_t dim = shape.size(); dim-- > 0;) {
      const std::int64_t at = rest % shape[dim];
      rest /= shape[dim];
      inside = inside && box[dim].begin <= at && at < box[dim].end;
    }
    if (inside) indices.push_back(index);
  }
  return indices;
}

// Every dim cut in some number of parts (often more than it has elements), and each box flat over a depth axis: the
// shards' indices are the brute-force ones, and all shards together hold every element once.
TEST(Shard, CutOverAxesAndDepthTilesTheTensor) {
  std::mt19937_64 engine(test::seed());
  const auto draw = [&](std::int64_t from, std::int64_t to) {
    return std::uniform_int_distribution<std::int64_t>(from, to)(engine);
  };
  for (int sample = 0; sample < 2000; ++sample) {
    std::vector<std::int64_t> shape, cuts;
    const std::int64_t dims = draw(0, 4);
    std::int64_t boxes = 1;
    for (std::int64_t dim = 0; dim < dims; ++dim) {
      shape.push_back(draw(0, 6));
      cuts.push_back(draw(1, 4));
      boxes *= cuts.back();
    }
    const std::int64_t depth = draw(1, 5);
    std::vector<int> held(static_cast<std::size_t>(whole_shard(shape).size()), 0);
    for (std::int64_t number = 0; number < boxes; ++number) {
      Box box;
      std::int64_t rest = number;
      for (std::size_t dim = 0; dim < shape.size(); ++dim) {
        box.push_back(part(shape[dim], cuts[dim], rest % cuts[dim]));
        rest /= cuts[dim];
      }
      const std::vector<std::int64_t> expected = indices_of_box(shape, box);
      ASSERT_EQ(box_size(box), static_cast<std::int64_t>(expected.size()));
      std::int64_t at = 0;
      for (std::int64_t z = 0; z < depth; ++z) {
        const Shard shard{shape, box, part(box_size(box), depth, z)};
        for (std::int64_t i = 0; i < shard.size(); ++i) {
          const std::int64_t index = shard.global_index(i);
          ASSERT_EQ(index, expected[static_cast<std::size_t>(at++)]) << "seed " << test::seed() << " sample " << sample;
          ++held[static_cast<std::size_t>(index)];
        }
      }
      ASSERT_EQ(at, static_cast<std::int64_t>(expected.size()));
    }
    for (const int count : held) ASSERT_EQ(count, 1) << "seed " << test::seed() << " sample " << sample;
  }
}

}  // namespace
}  // namespace fourfold
