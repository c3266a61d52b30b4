#include "base/stop_flag.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "base/error.hpp"

namespace fourfold {
namespace {

using std::chrono::milliseconds;

TEST(StopSignals, EachSignalSetsTheFlagOnly) {
  for (const int signal : {SIGTERM, SIGUSR1, SIGUSR2, SIGINT}) {
    const StopSignals signals;
    EXPECT_FALSE(stop_requested());
    std::raise(signal);
    EXPECT_TRUE(stop_requested());
    EXPECT_EQ(stop_signal(), signal);
  }
}

TEST(StopSignals, KeepsTheFirstOfTwoKinds) {
  const StopSignals signals(milliseconds(0));
  std::raise(SIGUSR2);
  std::raise(SIGTERM);
  EXPECT_EQ(stop_signal(), SIGUSR2);
  EXPECT_EQ(signal_name(stop_signal()), "SIGUSR2");
}

TEST(StopSignals, AnEchoOfTheFirstIsNotASecond) {
  const StopSignals signals(milliseconds(60000));
  std::raise(SIGUSR1);
  std::raise(SIGUSR1);
  EXPECT_EQ(stop_signal(), SIGUSR1);
}

TEST(StopSignalsDeathTest, ASecondOfTheKindEndsTheProcess) {
  for (const int signal : {SIGTERM, SIGUSR1, SIGUSR2, SIGINT}) {
    EXPECT_EXIT(
        {
          const StopSignals signals(milliseconds(20));
          std::raise(signal);
          std::this_thread::sleep_for(milliseconds(60));
          std::raise(signal);
          std::exit(0);
        },
        testing::KilledBySignal(signal), "");
  }
}

volatile std::sig_atomic_t calls_of_former = 0;

TEST(StopSignals, GivesTheFormerHandlersBack) {
  calls_of_former = 0;
  const auto before = std::signal(SIGUSR1, [](int) { calls_of_former = calls_of_former + 1; });
  {
    const StopSignals signals;
    std::raise(SIGUSR1);
    EXPECT_EQ(calls_of_former, 0);
    EXPECT_THROW(const StopSignals again, Error);
  }
  std::raise(SIGUSR1);
  EXPECT_EQ(calls_of_former, 1);
  std::signal(SIGUSR1, before);
}

}  // namespace
}  // namespace fourfold
