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

TEST(PhaseTimes, InnerPhasesAreNotChargedTwice) {
  PhaseTimes times;
  {
    const PhaseTimes::Scope forward(times, "forward");
    sleep_ms(20);
    {
      const PhaseTimes::Scope comm(times, "comm");
      sleep_ms(30);
    }
    sleep_ms(10);
  }
  sleep_ms(15);
  {
    const PhaseTimes::Scope comm(times, "comm");
    sleep_ms(10);
  }
  ASSERT_EQ(times.phases().size(), 2u);
  EXPECT_EQ(times.phases()[0].name, "forward");
  EXPECT_EQ(times.phases()[1].name, "comm");
  // A sleep is never shorter than asked for, so the bounds below hold on a loaded machine too.
  EXPECT_GE(times.seconds("forward"), 0.029);
  EXPECT_GE(times.seconds("comm"), 0.039);
  EXPECT_GE(times.unaccounted(), 0.014);
  EXPECT_DOUBLE_EQ(times.sum(), times.seconds("forward") + times.seconds("comm"));
  EXPECT_LE(times.sum() + 0.014, times.wall()) << "comm inside forward was charged to both";
  EXPECT_EQ(times.seconds("backward"), 0.0);
}

TEST(PhaseTimes, ResetStartsOver) {
  PhaseTimes times;
  { const PhaseTimes::Scope load(times, "load"); }
  times.reset();
  EXPECT_EQ(times.sum(), 0.0);
  EXPECT_EQ(times.phases().size(), 1u);
}

}  // namespace
}  // namespace fourfold
