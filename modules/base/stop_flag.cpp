#include "base/stop_flag.hpp"

#include <atomic>
#include <cstdint>
#include <ctime>

#include "base/error.hpp"

namespace fourfold {

namespace {

constexpr std::array<int, 4> kSignals{SIGTERM, SIGUSR1, SIGUSR2, SIGINT};

// A signal handler has no argument of ours, so what it touches is static; lock-free atomics are what it may touch.
std::atomic<int> first_signal{0};
std::array<std::atomic<std::int64_t>, kSignals.size()> first_time_ns{};  // 0: this kind did not come yet
std::atomic<std::int64_t> echo_ns{0};
std::atomic<bool> installed{false};
static_assert(std::atomic<std::int64_t>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

std::size_t kind_of(int signal) {
  std::size_t kind = 0;
  while (kind + 1 < kSignals.size() && kSignals[kind] != signal) ++kind;
  return kind;
}

void on_signal(int signal) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const std::int64_t now_ns = std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  std::int64_t first = 0;
  if (first_time_ns[kind_of(signal)].compare_exchange_strong(first, now_ns)) {
    int none = 0;
    first_signal.compare_exchange_strong(none, signal);
  } else if (now_ns - first >= echo_ns.load()) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);  // delivered when this handler returns
  }
}

}  // namespace

StopSignals::StopSignals(std::chrono::milliseconds echo) {
  FOURFOLD_ASSERT(!installed.exchange(true), "the stop signals are installed twice");
  echo_ns = std::chrono::nanoseconds(echo).count();
  first_signal = 0;
  for (auto& time : first_time_ns) time = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;  // a read or write that is under way goes on
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &former_[i]);
}

StopSignals::~StopSignals() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &former_[i], nullptr);
  installed = false;
}

int stop_signal() {
  return first_signal.load();
}

bool stop_requested() {
  return stop_signal() != 0;
}

std::string signal_name(int signal) {
  switch (signal) {
    case SIGTERM:
      return "SIGTERM";
    case SIGUSR1:
      return "SIGUSR1";
    case SIGUSR2:
      return "SIGUSR2";
    case SIGINT:
      return "SIGINT";
    default:
      return "signal " + std::to_string(signal);
  }
}

}  // namespace fourfold
