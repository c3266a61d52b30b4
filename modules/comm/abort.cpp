#include "comm/abort.hpp"

#include <execinfo.h>
#include <mpi.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>

#include "comm/call_ring.hpp"
#include "comm/launch.hpp"

namespace fourfold {

namespace {

constexpr unsigned kAbortSeconds = 5;          // for MPI_Abort, then SIGALRM ends this process
constexpr useconds_t kDeliveryMicro = 100000;  // so that the launcher forwards our line before it hears of the abort

// Text in a fixed buffer: signal handlers may not allocate. What does not fit is cut.
class Line {
 public:
  Line& operator<<(std::string_view text) {
    for (const char c : text)
      if (length_ < sizeof text_) text_[length_++] = c;
    return *this;
  }
  Line& operator<<(std::int64_t number) {
    char digits[24];
    std::size_t at = sizeof digits;
    const bool negative = number < 0;
    auto rest = negative ? -static_cast<std::uint64_t>(number) : static_cast<std::uint64_t>(number);
    do digits[--at] = static_cast<char>('0' + rest % 10);
    while ((rest /= 10) != 0);
    if (negative) digits[--at] = '-';
    return *this << std::string_view(digits + at, sizeof digits - at);
  }
  std::string_view view() const { return {text_, length_}; }

 private:
  char text_[512];
  std::size_t length_ = 0;
};

// Handlers take no argument of ours, so what they say is kept here: which process this is and what it does.
std::atomic<bool> active{false};
std::atomic<bool> aborting{false};
std::int64_t own_rank = -1;
char own_host[256] = "?";
std::atomic<std::int64_t> own_step{-1};
char own_phase[64] = "start";
CallRing* ring = nullptr;  // of the thread that calls MPI alone
alignas(16) char signal_stack[1 << 16];

void write_line(std::string_view message) noexcept {
  Line head;
  head << "rank " << own_rank << " on " << own_host << ", step ";
  if (own_step.load() < 0) {
    head << "-";
  } else {
    head << own_step.load();
  }
  head << ", " << own_phase << ": ";
  char newline = '\n';
  iovec parts[3] = {{const_cast<char*>(head.view().data()), head.view().size()},
                    {const_cast<char*>(message.data()), message.size()},
                    {&newline, 1}};
  if (writev(STDERR_FILENO, parts, 3) < 0) return;  // nobody listens any more; the exit code still speaks
}

[[noreturn]] void end_job(ExitCode code) noexcept {
  std::signal(SIGALRM, SIG_DFL);
  alarm(kAbortSeconds);
  int started = 0;
  int ended = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  if (started != 0 && ended == 0) {
    usleep(kDeliveryMicro);
    MPI_Abort(MPI_COMM_WORLD, static_cast<int>(code));
  }
  _exit(static_cast<int>(code));
}

const char* signal_text(int signal) {
  switch (signal) {
    case SIGSEGV:
      return "segmentation fault (SIGSEGV)";
    case SIGBUS:
      return "bus error (SIGBUS): a mapped file that became shorter, or bad memory";
    case SIGFPE:
      return "arithmetic error (SIGFPE)";
    case SIGILL:
      return "illegal instruction (SIGILL): was the program built for another CPU? See FOURFOLD_ARCH";
    default:
      return "aborted (SIGABRT)";
  }
}

// Reset to the default action on entry (SA_RESETHAND): a second fault in here ends the process by its signal.
void on_signal(int signal) {
  if (aborting.exchange(true)) return;
  write_line(signal_text(signal));
  void* frames[64];
  backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
  end_job(ExitCode::error);
}

[[noreturn]] void on_terminate() {
  if (const std::exception_ptr error = std::current_exception()) {
    try {
      std::rethrow_exception(error);
    } catch (const Error& e) {
      abort_job(e.code(), e.what());
    } catch (const std::exception& e) {
      abort_job(ExitCode::error, e.what());
    } catch (...) {
      abort_job(ExitCode::error, "an exception of an unknown type");
    }
  }
  abort_job(ExitCode::error, "std::terminate was called");
}

void on_out_of_memory() {
  abort_job(ExitCode::error, "out of memory (operator new found none)");
}

void on_exit() {
  if (active && !aborting) abort_job(ExitCode::error, "exit() was called in mid-run");
}

}  // namespace

void begin_abort_path(int rank, const std::string& host) {
  own_rank = rank;
  std::strncpy(own_host, host.c_str(), sizeof own_host - 1);
  active = true;
  std::set_terminate(on_terminate);
  std::set_new_handler(on_out_of_memory);
  void* frames[1];
  backtrace(frames, 1);  // loads its library now, not in a signal handler
  stack_t stack{};
  stack.ss_sp = signal_stack;
  stack.ss_size = sizeof signal_stack;
  sigaltstack(&stack, nullptr);
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_ONSTACK;
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigaction(signal, &action, nullptr);
  std::atexit(on_exit);
}

void end_abort_path() {
  active = false;
}

void abort_job(ExitCode code, std::string_view message) noexcept {
  if (aborting.exchange(true)) _exit(static_cast<int>(code));
  write_line(message);
  std::fflush(stdout);
  end_job(code);
}

void abort_job_quietly(ExitCode code) noexcept {
  aborting = true;
  end_job(code);
}

void set_progress(std::int64_t step, const char* phase) {
  own_step = step;
  std::strncpy(own_phase, phase, sizeof own_phase - 1);
  if (ring != nullptr) ring->enter(step, phase);
}

void tell_progress(CallRing* new_ring) {
  ring = new_ring;
}

}  // namespace fourfold
