// Axis sets, factorisations and the messages made of them.
#include "grid/axes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "grid/factorisation.hpp"

namespace fourfold {
namespace {

TEST(AxisSet, NamesFromTheOutsideIn) {
  EXPECT_EQ(AxisSet{}.name(), "self");
  EXPECT_EQ((AxisSet{Axis::depth, Axis::data}).name(), "data+depth");
  EXPECT_EQ((AxisSet{Axis::moe_col, Axis::replica, Axis::moe_row, Axis::expert}).name(),
            "replica+expert+moe_row+moe_col");
  EXPECT_EQ((AxisSet{Axis::col, Axis::stage}).name(), "stage+col");
}

TEST(AxisSet, IsASet) {
  const AxisSet both = AxisSet{Axis::data} | AxisSet{Axis::depth};
  EXPECT_EQ(both, (AxisSet{Axis::depth, Axis::data, Axis::data}));
  EXPECT_TRUE(both.has(Axis::data));
  EXPECT_FALSE(both.has(Axis::row));
  EXPECT_TRUE(AxisSet{}.empty());
  EXPECT_NE(both, AxisSet{Axis::data});
  std::set<std::string> names;
  for (int i = 0; i < kAxes; ++i) names.insert(std::string(axis_name(static_cast<Axis>(i))));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kAxes)) << "every axis has its own name";
}

TEST(Shapes, SizesPassThirtyTwoBits) {
  EXPECT_EQ((DenseShape{2, 3, 5, 7}.size()), 210);
  EXPECT_EQ((DenseShape{2, 3, 5, 7}.coordinates()), 6);
  EXPECT_EQ((MoeShape{1 << 16, 1 << 16, 2, 1}.size()), std::int64_t{1} << 33);
}

TEST(Factorisations, AllOfThemOnceInOrder) {
  for (int n = 1; n <= 64; ++n) {
    std::vector<std::array<int, 4>> expected;
    for (int a = 1; a <= n; ++a) {
      for (int b = 1; a * b <= n; ++b) {
        for (int c = 1; a * b * c <= n; ++c) {
          if (n % (a * b * c) == 0) expected.push_back({a, b, c, n / (a * b * c)});
        }
      }
    }
    const std::vector<DenseShape> dense = dense_factorisations(n);
    const std::vector<MoeShape> moe = moe_factorisations(n);
    ASSERT_EQ(dense.size(), expected.size());
    ASSERT_EQ(moe.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const auto [a, b, c, d] = expected[i];
      ASSERT_EQ(dense[i], (DenseShape{a, b, c, d}));
      ASSERT_EQ(moe[i], (MoeShape{a, b, c, d}));
    }
  }
}

TEST(FactorisationHint, NearestFirstAndThenHowManyMore) {
  // 12 ranks, row 8 asked.
  const std::string text = factorisation_hint(12, DenseShape{1, 1, 8, 1}, 3);
  EXPECT_EQ(text.rfind("data 1, depth 1, row 12, col 1; ", 0), 0u) << text;
  EXPECT_NE(text.find("row 6, col 1"), std::string::npos) << text;
  EXPECT_NE(text.find("; ... (37 more)"), std::string::npos) << text;  // 12 has 40 ordered factorisations
  EXPECT_EQ(factorisation_hint(1, MoeShape{1, 4, 1, 1}), "replica 1, expert 1, row 1, col 1");
  EXPECT_EQ(factorisation_hint(2, MoeShape{1, 2, 1, 1}, 1), "replica 1, expert 2, row 1, col 1; ... (3 more)");
}

}  // namespace
}  // namespace fourfold
