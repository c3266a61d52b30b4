// Every layout of few ranks, on one core and without MPI: both views, all groups.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <vector>

#include "grid/process_grid.hpp"

namespace fourfold {
namespace {

// From the inside out.
constexpr std::array<std::array<Axis, 4>, 2> kViews{
    {{Axis::col, Axis::row, Axis::depth, Axis::data}, {Axis::moe_col, Axis::moe_row, Axis::expert, Axis::replica}}};

AxisSet subset(const std::array<Axis, 4>& axes, unsigned bits) {
  AxisSet set;
  for (unsigned i = 0; i < 4; ++i) {
    if ((bits >> i & 1u) != 0) set = set | AxisSet{axes[i]};
  }
  return set;
}

// The checks return a message instead of asserting: half a million cases in seconds, with one report a case.
class Checker {
 public:
  std::string check(const ProcessGrid& grid, const std::vector<StageShape>& shapes) {
    std::int64_t total = 0;
    for (const StageShape& shape : shapes) {
      if (shape.dense.size() != shape.moe.size()) return "the views differ in size";
      total += shape.size();
    }
    if (grid.ranks() != total) return "the sizes do not multiply to the number of ranks";
    if (grid.stages() != static_cast<int>(shapes.size())) return "the stages are not those asked for";
    for (std::size_t view = 0; view < 2; ++view) keys_[view].clear();
    for (int rank = 0; rank < grid.ranks(); ++rank) {
      const Coordinates at = grid.coordinates(rank);
      if (grid.rank_at_dense(at) != rank) return "dense round trip of rank " + std::to_string(rank);
      if (grid.rank_at_moe(at) != rank) return "MoE round trip of rank " + std::to_string(rank);
      const StageShape& shape = shapes[static_cast<std::size_t>(at.stage)];
      if (outside(at.col, shape.dense.col) || outside(at.row, shape.dense.row) ||
          outside(at.depth, shape.dense.depth) || outside(at.data, shape.dense.data) ||
          outside(at.moe_col, shape.moe.col) || outside(at.moe_row, shape.moe.row) ||
          outside(at.expert, shape.moe.expert) || outside(at.replica, shape.moe.replica)) {
        return "a coordinate outside its axis";
      }
      keys_[0].push_back(key(at.data, at.depth, at.row, at.col));
      keys_[1].push_back(key(at.replica, at.expert, at.moe_row, at.moe_col));
    }
    int first = 0;
    for (int stage = 0; stage < grid.stages(); ++stage) {
      const int ranks = static_cast<int>(shapes[static_cast<std::size_t>(stage)].size());
      for (std::size_t view = 0; view < 2; ++view) {
        for (unsigned bits = 0; bits < 16; ++bits) {
          std::string fault = check_groups(grid, stage, first, ranks, view, bits);
          if (!fault.empty())
            return subset(kViews[view], bits).name() + " groups of stage " + std::to_string(stage) + ": " + fault;
        }
      }
      first += ranks;
    }
    return "";
  }

 private:
  // All groups of one kind in one stage: a partition of its ranks, each of the right size, asked from its first and its
  // last member alike.
  std::string check_groups(const ProcessGrid& grid, int stage, int first, int ranks, std::size_t view_index,
                           unsigned bits) {
    const std::array<Axis, 4>& view = kViews[view_index];
    const std::vector<std::uint32_t>& keys = keys_[view_index];
    const AxisSet axes = subset(view, bits);
    std::size_t expected_size = 1;
    std::uint32_t asked = 0;  // the asked axes' bits of a key
    unsigned wide = 0;        // the asked axes that have more than one rank
    for (unsigned i = 0; i < 4; ++i) {
      if ((bits >> i & 1u) == 0) continue;
      const int extent = grid.extent(stage, view[i]);
      expected_size *= static_cast<std::size_t>(extent);
      if (extent > 1) wide |= 1u << i;
      asked |= 0xffu << 8 * i;
    }
    if (wide != bits) {  // checked in full when its turn came; here only that axes of one rank add nothing
      const int rank = first + static_cast<int>(bits) % ranks;
      return grid.group(rank, axes) == grid.group(rank, subset(view, wide)) ? "" : "an axis of one rank matters";
    }
    seen_.assign(static_cast<std::size_t>(ranks), 0);
    for (int rank = first; rank < first + ranks; ++rank) {
      if (seen_[static_cast<std::size_t>(rank - first)] != 0) continue;
      const std::vector<int> group = grid.group(rank, axes);
      if (group.size() != expected_size) return "wrong size";
      if (std::find(group.begin(), group.end(), rank) == group.end()) return "a rank is not in its own group";
      for (std::size_t i = 0; i < group.size(); ++i) {
        const int member = group[i];
        if (member < first || member >= first + ranks) return "a member of another stage";
        if (seen_[static_cast<std::size_t>(member - first)]++ != 0) return "a rank in two groups";
        const std::uint32_t here = keys[static_cast<std::size_t>(member)];
        if (((here ^ keys[static_cast<std::size_t>(rank)]) & ~asked) != 0) return "members differ in another axis";
        if (i > 0 && keys[static_cast<std::size_t>(group[i - 1])] >= here) return "not in coordinate order";
      }
      if (group.size() > 1 && grid.group(group.back(), axes) != group) return "two members see different groups";
    }
    if (std::find(seen_.begin(), seen_.end(), 0) != seen_.end()) return "a rank in no group";
    return "";
  }

  // One view's coordinates, the outermost in the highest byte: keys compare as coordinates do.
  static std::uint32_t key(int outermost, int second, int third, int innermost) {
    return static_cast<std::uint32_t>(outermost << 24 | second << 16 | third << 8 | innermost);
  }
  static bool outside(int at, int extent) { return at < 0 || at >= extent; }

  std::array<std::vector<std::uint32_t>, 2> keys_;  // per rank, in the two views
  std::vector<int> seen_;
};

std::string text(const std::vector<StageShape>& stages) {
  std::string all;
  for (const StageShape& stage : stages) all += "[" + shape_text(stage.dense) + " | " + shape_text(stage.moe) + "] ";
  return all;
}

std::vector<StageShape> stage_shapes(int ranks) {
  std::vector<StageShape> shapes;
  for (const DenseShape& dense : dense_factorisations(ranks)) {
    for (const MoeShape& moe : moe_factorisations(ranks)) shapes.push_back({dense, moe});
  }
  return shapes;
}

TEST(EveryLayout, EqualStagesOfOneToSixtyFourRanks) {
  Checker checker;
  std::int64_t cases = 0;
  for (int ranks = 1; ranks <= 64; ++ranks) {
    for (int stages = 1; stages <= ranks; ++stages) {
      if (ranks % stages != 0) continue;
      for (const StageShape& shape : stage_shapes(ranks / stages)) {
        const std::vector<StageShape> all(static_cast<std::size_t>(stages), shape);
        const std::string fault = checker.check(ProcessGrid(all), all);
        ASSERT_EQ(fault, "") << stages << " x " << text({shape});
        ++cases;
      }
    }
  }
  EXPECT_EQ(cases, 165564);
}

// Every composition of the ranks into stage sizes, each stage with every pair of factorisations.
class Compositions {
 public:
  Compositions() {
    for (int size = 1; size <= kMost; ++size) shapes_.push_back(stage_shapes(size));
  }
  static constexpr int kMost = 8;

  // The number of cases; stops at the first fault.
  std::int64_t check_all(int ranks) {
    if (ranks == 0) {
      const std::string fault = checker_.check(ProcessGrid(stages_), stages_);
      EXPECT_EQ(fault, "") << text(stages_);
      return 1;
    }
    std::int64_t cases = 0;
    for (int size = 1; size <= ranks; ++size) {
      for (const StageShape& shape : shapes_[static_cast<std::size_t>(size) - 1]) {
        stages_.push_back(shape);
        cases += check_all(ranks - size);
        stages_.pop_back();
        if (testing::Test::HasFailure()) return cases;
      }
    }
    return cases;
  }

 private:
  std::vector<std::vector<StageShape>> shapes_;  // of 1, 2, ... ranks
  std::vector<StageShape> stages_;
  Checker checker_;
};

TEST(EveryLayout, UnequalStagesOfOneToEightRanks) {
  Compositions compositions;
  std::vector<std::int64_t> cases;
  for (int ranks = 1; ranks <= Compositions::kMost; ++ranks) cases.push_back(compositions.check_all(ranks));
  // With f(n) = (ordered factorisations of n into 4)^2 and g(0) = 1: g(n) = sum over s of f(s) g(n - s). The 306,245
  // that issue 2 names are the layouts of 8 ranks; 1 to 8 ranks have 369,252 together.
  EXPECT_EQ(cases, (std::vector<std::int64_t>{1, 17, 49, 437, 1609, 11357, 49537, 306245}));
  EXPECT_EQ(std::accumulate(cases.begin(), cases.end(), std::int64_t{0}), 369252);
}

}  // namespace
}  // namespace fourfold
