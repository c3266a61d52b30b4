#include "optim/rate.hpp"

#include <gtest/gtest.h>

namespace fourfold {
namespace {

OptimizerDeck deck(ScheduleKind kind, std::int64_t warmup) {
  OptimizerDeck optimizer;
  optimizer.lr = 1e-3;
  optimizer.schedule = {kind, warmup, 1e-4};
  return optimizer;
}

// P12: a schedule rebuilt with other totals gives another rate.
TEST(LearningRate, P12) {
  const OptimizerDeck cosine = deck(ScheduleKind::cosine, 10);
  EXPECT_NEAR(learning_rate(cosine, 100, 50), 6.281416800e-4, 5e-14);
  EXPECT_NEAR(learning_rate(cosine, 200, 50), 9.051132292e-4, 5e-14);
}

TEST(LearningRate, WarmUpCountsFromOne) {
  for (const ScheduleKind kind : {ScheduleKind::constant, ScheduleKind::linear, ScheduleKind::cosine}) {
    const OptimizerDeck optimizer = deck(kind, 10);
    EXPECT_DOUBLE_EQ(learning_rate(optimizer, 100, 1), 1e-4);
    EXPECT_DOUBLE_EQ(learning_rate(optimizer, 100, 7), 7e-4);
    EXPECT_DOUBLE_EQ(learning_rate(optimizer, 100, 10), 1e-3);
  }
}

TEST(LearningRate, EndsAndClamps) {
  EXPECT_DOUBLE_EQ(learning_rate(deck(ScheduleKind::cosine, 10), 100, 100), 1e-4);
  EXPECT_DOUBLE_EQ(learning_rate(deck(ScheduleKind::cosine, 10), 100, 137), 1e-4);
  EXPECT_DOUBLE_EQ(learning_rate(deck(ScheduleKind::linear, 10), 100, 100), 1e-4);
  EXPECT_DOUBLE_EQ(learning_rate(deck(ScheduleKind::linear, 10), 100, 200), 1e-4);
  EXPECT_NEAR(learning_rate(deck(ScheduleKind::linear, 10), 100, 55), 5.5e-4, 1e-18);
  EXPECT_DOUBLE_EQ(learning_rate(deck(ScheduleKind::constant, 0), 100, 1), 1e-3);
  EXPECT_DOUBLE_EQ(learning_rate(deck(ScheduleKind::constant, 3), 100, 99), 1e-3);
}

// All steps warm up: never a division by zero.
TEST(LearningRate, WarmUpOfTheWholeRun) {
  EXPECT_DOUBLE_EQ(learning_rate(deck(ScheduleKind::cosine, 20), 20, 20), 1e-3);
  EXPECT_DOUBLE_EQ(learning_rate(deck(ScheduleKind::cosine, 20), 20, 21), 1e-4);
}

}  // namespace
}  // namespace fourfold
