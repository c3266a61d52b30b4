#include "deck/names.hpp"

#include "deck_support.hpp"

namespace fourfold::test {

TEST(Names, EditDistance) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("optimzer", "optimizer"), 1);
  EXPECT_EQ(edit_distance("hidden", "hiddne"), 1);  // neighbours swapped
  EXPECT_EQ(edit_distance("lr", "final"), edit_distance("final", "lr"));
}

TEST(Names, Nearest) {
  const std::vector<std::string> names = {"run", "model", "data", "optimizer"};
  EXPECT_EQ(nearest_name("modle", names), "model");
  EXPECT_EQ(nearest_name("optimiser", names), "optimizer");
  EXPECT_EQ(nearest_name("completely", names), "");
  EXPECT_EQ(nearest_name("x", names), "");
}

TEST(Names, Divisors) {
  EXPECT_EQ(divisors(1), (std::vector<std::int64_t>{1}));
  EXPECT_EQ(divisors(36), (std::vector<std::int64_t>{1, 2, 3, 4, 6, 9, 12, 18, 36}));
  for (std::int64_t n = 1; n <= 500; ++n) {
    std::vector<std::int64_t> expected;
    for (std::int64_t d = 1; d <= n; ++d) {
      if (n % d == 0) expected.push_back(d);
    }
    EXPECT_EQ(divisors(n), expected) << n;
  }
}

}  // namespace fourfold::test
