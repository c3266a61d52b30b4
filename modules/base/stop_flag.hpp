// "Please stop": SIGTERM, SIGUSR1, SIGUSR2 and SIGINT set a flag and nothing else. The training loop looks at it and
// all ranks agree; the caller then saves once and leaves with ExitCode::again.
#pragma once

#include <array>
#include <chrono>
#include <csignal>
#include <string>

namespace fourfold {

// Installs the handlers, and gives the former ones back in its destructor. At most one object at a time.
//
// A second signal of the same kind ends the process by that signal at once. One that comes within `echo` of the first
// is the same request, not a second one: `scancel --full` and a terminal's Ctrl-C reach a rank directly and through
// mpirun.
class StopSignals {
 public:
  explicit StopSignals(std::chrono::milliseconds echo = std::chrono::milliseconds(1000));
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

 private:
  std::array<struct sigaction, 4> former_{};
};

// The first signal that this process got while handlers were installed; 0: none. Signal-safe and cheap.
int stop_signal();
bool stop_requested();
// "SIGUSR1"; "signal 42" for one that is not ours.
std::string signal_name(int signal);

}  // namespace fourfold
