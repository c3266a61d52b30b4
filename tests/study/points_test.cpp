// Windows, medians, efficiency, and what never gets a speed-up.
#include <gtest/gtest.h>

#include <cmath>

#include "study/measure.hpp"
#include "study/points.hpp"
#include "study/text_table.hpp"

namespace fourfold::study {
namespace {

TEST(Windows, P74AreThreeAtLeastAndLoseNoStep) {
  EXPECT_EQ(window_means({1, 2, 3, 4, 5, 6}), (std::vector<double>{1.5, 3.5, 5.5}));
  EXPECT_EQ(window_means({1, 2}).size(), 2u);
  EXPECT_EQ(window_means(std::vector<double>(15, 1.0)).size(), 5u);
  EXPECT_EQ(window_means(std::vector<double>(31, 1.0)).size(), 10u);
  EXPECT_TRUE(window_means({}).empty());
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_TRUE(std::isnan(median({})));
}

struct Made {
  ListedStudy study;
  std::map<std::string, trials::TrialState> states;
  void add(const std::string& point, std::int64_t ranks, const std::string& clock, double seconds, double tokens) {
    const std::string key = std::to_string(study.trials.size());
    study.trials.push_back({key, key, point, point, ranks});
    trials::TrialState& state = states[key];
    state.outcome = trials::TrialState::Outcome::done;
    state.row = {{"clock", clock},
                 {"step_seconds", seconds},
                 {"step_seconds_least", 0.9 * seconds},
                 {"step_seconds_most", 1.1 * seconds},
                 {"tokens_per_step", tokens}};
  }
};

TEST(Points, P74CompareRatesWithTheSmallestOfTheirNameAndClock) {
  Made made;
  made.add("ddp", 2, "wall", 1.0, 100);
  made.add("ddp", 2, "wall", 3.0, 100);
  made.add("ddp", 2, "wall", 2.0, 100);
  made.add("ddp", 4, "wall", 1.25, 100);             // strong
  made.add("fsdp", 4, "wall", 2.0, 200);             // another name: its own base
  made.add("ddp", 8, "oversubscribed", 0.001, 100);  // no measure
  made.add("ddp", 16, "virtual", 4.0, 100);
  made.add("ddp", 32, "virtual", 4.0, 150);  // weak
  const std::vector<Point> points = make_points(made.study, made.states);
  ASSERT_EQ(points.size(), 6u);
  EXPECT_EQ(points[0].rows.size(), 3u);
  EXPECT_EQ(points[0].step_seconds, 2.0);
  EXPECT_DOUBLE_EQ(points[0].least, 0.9);
  EXPECT_DOUBLE_EQ(points[0].most, 3.3);
  EXPECT_EQ(points[0].efficiency, 1.0);
  EXPECT_DOUBLE_EQ(points[1].speed_up, 1.6);
  EXPECT_DOUBLE_EQ(points[1].efficiency, 0.8);
  EXPECT_EQ(points[1].base_ranks, 2);
  EXPECT_EQ(points[2].efficiency, 1.0);
  EXPECT_TRUE(std::isnan(points[3].speed_up));
  EXPECT_TRUE(std::isnan(points[3].efficiency));
  EXPECT_EQ(points[4].base_ranks, 16);
  EXPECT_DOUBLE_EQ(points[5].efficiency, 0.75);
}

TEST(Points, P74OneOversubscribedTrialMakesThePointOne) {
  Made made;
  made.add("ddp", 1, "wall", 1.0, 100);
  made.add("ddp", 2, "wall", 1.0, 100);
  made.add("ddp", 2, "oversubscribed", 1.0, 100);
  const std::vector<Point> points = make_points(made.study, made.states);
  EXPECT_EQ(points[1].clock, "oversubscribed");
  EXPECT_TRUE(std::isnan(points[1].speed_up));
}

TEST(Tables, AreEscapedAndAligned) {
  const TextTable table{"T & C", "note", {"name", "n"}, {{"a|b", "1"}, {"<c>", "22"}}};
  EXPECT_EQ(as_text(table), "T & C\nname   n\na|b    1\n<c>   22\nnote\n");
  EXPECT_NE(as_markdown(table).find("| a\\|b | 1 |"), std::string::npos);
  EXPECT_NE(as_html(table).find("&lt;c&gt;"), std::string::npos);
  EXPECT_EQ(csv_line({"a", "b,c", "say \"x\""}), "a,\"b,c\",\"say \"\"x\"\"\"\n");
}

}  // namespace
}  // namespace fourfold::study
