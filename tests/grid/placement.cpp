// Numbering, placements, groups across stages, and the errors of a grid.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "base/error.hpp"
#include "grid/process_grid.hpp"
#include "test_support.hpp"

namespace fourfold {
namespace {

const StageShape kTwelve{{3, 1, 2, 2}, {1, 6, 2, 1}};

template <class Function>
std::string message_of(Function function, ExitCode code) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

TEST(ProcessGrid, NumbersColRowDepthDataStageFromTheInsideOut) {
  const ProcessGrid grid({{{2, 3, 2, 2}, {2, 3, 2, 2}}, {{2, 3, 2, 2}, {2, 3, 2, 2}}});
  EXPECT_EQ(grid.ranks(), 48);
  EXPECT_EQ(grid.coordinates(0), Coordinates{});
  EXPECT_EQ(grid.coordinates(1).col, 1);
  EXPECT_EQ(grid.coordinates(2).row, 1);
  EXPECT_EQ(grid.coordinates(4).depth, 1);
  EXPECT_EQ(grid.coordinates(12).data, 1);
  EXPECT_EQ(grid.coordinates(24).stage, 1);
  const Coordinates where = grid.coordinates(24 + 12 + 2 * 4 + 2);
  EXPECT_EQ(where, (Coordinates{1, 1, 2, 1, 0, 1, 2, 1, 0}));
  EXPECT_EQ(where[Axis::stage], 1);
  EXPECT_EQ(where[Axis::expert], 2);
}

TEST(ProcessGrid, TheTwoViewsNameTheSameRank) {
  const ProcessGrid grid({kTwelve});
  const Coordinates where = grid.coordinates(7);  // dense 2*2 inside, MoE 1*2 inside
  EXPECT_EQ(where, (Coordinates{0, 1, 0, 1, 1, 0, 3, 1, 0}));
}

TEST(ProcessGrid, GroupsInCoordinateOrder) {
  const ProcessGrid grid({kTwelve, kTwelve});
  EXPECT_EQ(grid.group(17, {}), (std::vector<int>{17}));
  EXPECT_EQ(grid.group(5, {Axis::data}), (std::vector<int>{1, 5, 9}));
  EXPECT_EQ(grid.group(5, {Axis::col, Axis::row}), (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(grid.group(17, {Axis::col, Axis::data}), (std::vector<int>{16 - 4, 17 - 4, 16, 17, 16 + 4, 17 + 4}));
  EXPECT_EQ(grid.group(3, {Axis::expert}), (std::vector<int>{1, 3, 5, 7, 9, 11}));
  EXPECT_EQ(grid.group(3, {Axis::moe_row}), (std::vector<int>{2, 3}));
  EXPECT_EQ(grid.group(17, {Axis::stage}), (std::vector<int>{5, 17}));
  EXPECT_EQ(grid.group(17, {Axis::stage, Axis::moe_row}), (std::vector<int>{4, 5, 16, 17}));
  EXPECT_EQ(grid.extent(0, Axis::stage), 2);
  EXPECT_EQ(grid.extent(1, Axis::expert), 6);
  EXPECT_EQ(grid.extent(1, Axis::data), 3);
  EXPECT_THROW(grid.group(0, {Axis::data, Axis::expert}), Error);
  EXPECT_THROW(grid.group(24, {Axis::data}), Error);
}

// The first stage and the one that holds a matrix with it: their ranks one after the other.
TEST(ProcessGrid, TiedGroups) {
  const ProcessGrid grid({kTwelve, kTwelve, kTwelve});
  const GroupKey tied({Axis::data}, 1, 2);
  EXPECT_EQ(grid.group(5, tied), (std::vector<int>{1, 5, 9, 25, 29, 33}));
  EXPECT_EQ(grid.group(33, tied), grid.group(5, tied));
  EXPECT_EQ(grid.group(28, GroupKey({}, 1, 2)), (std::vector<int>{4, 28}));
  EXPECT_EQ(tied.name(), "data+tied");
  EXPECT_FALSE(GroupKey({}, 1, 2).empty());
  EXPECT_THROW(grid.group(13, tied), Error);
}

TEST(ProcessGrid, AGroupOverUnequalStagesIsRefused) {
  const ProcessGrid grid({{{2, 1, 1, 1}, {2, 1, 1, 1}}, {{1, 1, 1, 1}, {1, 1, 1, 1}}});
  EXPECT_EQ(grid.group(2, {Axis::data}), (std::vector<int>{2}));
  EXPECT_THROW(grid.group(0, {Axis::stage}), Error);
  EXPECT_FALSE(grid.equal_stages());
  EXPECT_EQ(grid.ranks_of_stage(0), (std::vector<int>{0, 1}));
  EXPECT_EQ(grid.ranks_of_stage(1), (std::vector<int>{2}));
  EXPECT_TRUE(ProcessGrid({kTwelve, kTwelve}).equal_stages());
  EXPECT_EQ(ProcessGrid({{{2, 1, 1, 1}, {2, 1, 1, 1}}, {{1, 1, 1, 1}, {1, 1, 1, 1}}}, {2, 0, 1}).ranks_of_stage(0),
            (std::vector<int>{2, 0}));
}

// A placement relabels ranks: group of placement[slot] = placement of the group of slot.
TEST(ProcessGrid, PlacementsRelabelRanks) {
  const std::vector<StageShape> stages{kTwelve, {{1, 2, 3, 1}, {3, 1, 1, 2}}, kTwelve};
  const ProcessGrid plain(stages);
  std::mt19937_64 engine(test::seed());
  for (int sample = 0; sample < 50; ++sample) {
    std::vector<int> placement(static_cast<std::size_t>(plain.ranks()));
    std::iota(placement.begin(), placement.end(), 0);
    std::shuffle(placement.begin(), placement.end(), engine);
    const ProcessGrid grid(stages, placement);
    for (int slot = 0; slot < plain.ranks(); ++slot) {
      const int rank = placement[static_cast<std::size_t>(slot)];
      const Coordinates where = plain.coordinates(slot);
      ASSERT_EQ(grid.coordinates(rank), where);
      ASSERT_EQ(grid.rank_at_dense(where), rank);
      ASSERT_EQ(grid.rank_at_moe(where), rank);
      for (const AxisSet axes :
           {AxisSet{}, AxisSet{Axis::data}, AxisSet{Axis::col, Axis::depth}, AxisSet{Axis::expert, Axis::moe_col}}) {
        std::vector<int> expected = plain.group(slot, axes);
        for (int& member : expected) member = placement[static_cast<std::size_t>(member)];
        ASSERT_EQ(grid.group(rank, axes), expected) << axes.name();
      }
    }
  }
}

TEST(ProcessGrid, ErrorsNameWhatIsWrong) {
  message_of([] { const ProcessGrid grid({}); }, ExitCode::input);
  std::string text = message_of(
      [] {
        const ProcessGrid grid({StageShape{{1, 0, 1, 1}, {1, 1, 1, 1}}});
      },
      ExitCode::input);
  EXPECT_NE(text.find("axis depth is 0"), std::string::npos) << text;
  text = message_of([] { const ProcessGrid grid({kTwelve, {{2, 1, 2, 1}, {1, 3, 1, 1}}}); }, ExitCode::input);
  EXPECT_NE(text.find("stage 1"), std::string::npos) << text;
  EXPECT_NE(text.find("has 4 ranks"), std::string::npos) << text;
  EXPECT_NE(text.find("MoE grids of 4: replica 1, expert 4, row 1, col 1"), std::string::npos) << text;
  const StageShape overflow{{1 << 30, 1 << 30, 1 << 30, 1 << 30}, {1, 1, 1, 1}};
  message_of([&] { const ProcessGrid grid({overflow}); }, ExitCode::input);
  const StageShape huge{{1 << 30, 1, 1, 1}, {1 << 30, 1, 1, 1}};
  message_of([&] { const ProcessGrid grid({huge, huge, huge}); }, ExitCode::input);
  const StageShape three{{3, 1, 1, 1}, {3, 1, 1, 1}};
  text = message_of([&] { const ProcessGrid grid({three}, {0, 1}); }, ExitCode::input);
  EXPECT_NE(text.find("names 2 ranks"), std::string::npos) << text;
  text = message_of([&] { const ProcessGrid grid({three}, {0, 1, 1}); }, ExitCode::input);
  EXPECT_NE(text.find("rank 1 twice"), std::string::npos) << text;
  text = message_of([&] { const ProcessGrid grid({three}, {0, 1, 3}); }, ExitCode::input);
  EXPECT_NE(text.find("rank 3"), std::string::npos) << text;
  message_of([&] { const ProcessGrid grid({three}, {0, -1, 2}); }, ExitCode::input);
}

TEST(ProcessGrid, CoordinatesOutsideAreRefused) {
  const ProcessGrid grid({kTwelve});
  EXPECT_THROW(grid.coordinates(12), Error);
  EXPECT_THROW(grid.coordinates(-1), Error);
  Coordinates where;
  where.row = 2;
  EXPECT_THROW(grid.rank_at_dense(where), Error);
  EXPECT_EQ(grid.rank_at_moe(where), 0) << "the other view's fields are not looked at";
  where.stage = 1;
  EXPECT_THROW(grid.rank_at_moe(where), Error);
}

TEST(ProcessGrid, TableHasOneAlignedLineARank) {
  const std::string table = ProcessGrid({kTwelve, kTwelve}).table(24);
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 25);
  std::size_t width = 0;
  for (std::size_t at = 0; at < table.size(); at = table.find('\n', at) + 1) {
    const std::size_t length = table.find('\n', at) - at;
    if (width == 0) width = length;
    EXPECT_EQ(length, width);
  }
  EXPECT_NE(table.find("\n     19     1 |     1     0     1     1 |       0      3     1     0\n"), std::string::npos)
      << table;
}

TEST(ProcessGrid, TableIsShortenedAndNamesHosts) {
  const ProcessGrid grid({kTwelve, kTwelve});
  const std::string table = grid.table(8);
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 10);
  EXPECT_NE(table.find("\n      5 "), std::string::npos) << table;
  EXPECT_NE(table.find("\n    ... 16 ranks left out\n     22 "), std::string::npos) << table;
  EXPECT_EQ(table.find("\n      6 "), std::string::npos) << table;
  std::vector<std::string> hosts;
  for (int rank = 0; rank < 24; ++rank) hosts.push_back("n" + std::to_string(rank / 5));
  const std::string named = grid.table(24, hosts);
  EXPECT_NE(named.find(" | host\n"), std::string::npos) << named;
  EXPECT_NE(named.find("\n     19     1 |     1     0     1     1 |       0      3     1     0 | n3\n"),
            std::string::npos)
      << named;
}

}  // namespace
}  // namespace fourfold
