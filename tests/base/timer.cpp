#include "base/timer.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace fourfold {
namespace {

void sleep_ms(int ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

TEST(Stopwatch, MeasuresAndRestarts) {
  Stopwatch watch;
  const Stopwatch whole;
  sleep_ms(20);
  EXPECT_GE(watch.seconds(), 0.019);
  watch.restart();
  EXPECT_LE(watch.seconds() + 0.019, whole.seconds());
}

}  // namespace
}  // namespace fourfold
