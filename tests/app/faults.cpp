// Faults that tests order, linked into fourfold_faults alone: the program itself knows nothing of them. The linker
// gives this file the calls of set_progress and of two sums (--wrap, CMakeLists.txt), and the system's write, pwrite
// and rename are found here before the C library's.
//
//   FOURFOLD_FAULT="KIND rank=R step=S phase=P call=N last=S2 seconds=T file=NAME"
//
// At the N-th (from 0) entry of the phase, sum or write of the step, on the rank (none given: on whichever comes).
//   kill throw bad_alloc exit0 quick_exit0 segv usr1 term sleep    on entering the phase
//   skip shorten swap inf                                          a sum over ranks, in the phase; inf: from S to S2
//   gate                                                           no fault: a step waits for gate.STEP to go
//   log                                                            no fault: "log rank R: fsync PATH" to standard error
//   short_write slow_write enospc flip kill_write kill_rename      on the step's checkpoint file, or a file
//                                                                  whose path ends with NAME
//   flip_state                                                     in the deck that the step's file holds
//   kill_commit                                                    before its commit record has its name
//   no_locks                                                       the system refuses flock
#include <fcntl.h>
#include <mpi.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <new>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "comm/collectives.hpp"
#include "comm/launch.hpp"

namespace fourfold::test {
namespace {

struct Fault {
  std::string kind;
  int rank = -1;
  long step = 0, last = 0;
  std::string phase, file;
  long call = 0;
  double seconds = 0;
};

const Fault& fault() {
  static const Fault the = [] {
    Fault fault;
    const char* text = std::getenv("FOURFOLD_FAULT");
    std::istringstream words(text != nullptr ? text : "");
    words >> fault.kind;
    for (std::string word; words >> word;) {
      const auto equals = word.find('=');
      const std::string key = word.substr(0, equals), value = word.substr(equals + 1);
      if (key == "rank") fault.rank = std::stoi(value);
      if (key == "step") fault.step = fault.last = std::stol(value);
      if (key == "last") fault.last = std::stol(value);
      if (key == "phase") fault.phase = value == "gradient_sum" ? "gradient sum" : value;
      if (key == "file") fault.file = value;
      if (key == "call") fault.call = std::stol(value);
      if (key == "seconds") fault.seconds = std::stod(value);
    }
    return fault;
  }();
  return the;
}

bool is(const char* kind) {
  return fault().kind == kind;
}

int own_rank = -2;  // before the first phase
long own_step = -1;
std::string own_phase;
std::map<std::string, long> met;  // of this step

bool here() {
  return fault().rank < 0 || fault().rank == own_rank;
}

// Whether it is this one of the entries, sums or writes called `what`.
bool due(const std::string& what) {
  return met[what + " " + std::to_string(own_step)]++ == fault().call;
}

bool in_phase() {
  return here() && own_step >= fault().step && own_step <= fault().last &&
         (fault().phase.empty() || fault().phase == own_phase);
}

void sleep_for(double seconds) {
  usleep(static_cast<useconds_t>(seconds * 1e6));
}

void enter() {
  if (is("kill")) kill(getpid(), SIGKILL);
  if (is("throw")) throw std::runtime_error("a fault was ordered");
  if (is("bad_alloc")) throw std::bad_alloc();
  if (is("exit0")) std::exit(0);
  if (is("quick_exit0")) _exit(0);
  if (is("segv")) raise(SIGSEGV);
  if (is("usr1")) raise(SIGUSR1);
  if (is("term")) raise(SIGTERM);
  if (is("sleep")) sleep_for(fault().seconds);
}

bool of_sums() {
  return is("skip") || is("shorten") || is("inf") || is("swap");
}

// A sum that comes after the next one.
struct Held {
  const Communicator* group;
  std::span<float> data;
  Summation summation;
  CallSite site;
};
std::optional<Held> held;

}  // namespace

// set_progress and the sums, as the linker names what it wraps and what it then finds behind.
void real_set_progress(std::int64_t step, const char* phase) asm("__real__ZN8fourfold12set_progressElPKc");
void set_progress(std::int64_t step, const char* phase) asm("__wrap__ZN8fourfold12set_progressElPKc");

#define FOURFOLD_SUM \
  "all_reduce_sumIfEEvRKNS_12CommunicatorESt4spanIT_Lm18446744073709551615EENS_9SummationENS_8CallSiteE"
#define FOURFOLD_START                                                                                          \
  "start_all_reduce_sumIfEENS_7PendingERKNS_12CommunicatorESt4spanIT_Lm18446744073709551615EENS_9SummationENS_" \
  "8CallSiteE"
void real_sum(const Communicator& group, std::span<float> data, Summation summation,
              CallSite site) asm("__real__ZN8fourfold14" FOURFOLD_SUM);
void sum(const Communicator& group, std::span<float> data, Summation summation,
         CallSite site) asm("__wrap__ZN8fourfold14" FOURFOLD_SUM);
Pending real_start(const Communicator& group, std::span<float> data, Summation summation,
                   CallSite site) asm("__real__ZN8fourfold20" FOURFOLD_START);
Pending start(const Communicator& group, std::span<float> data, Summation summation,
              CallSite site) asm("__wrap__ZN8fourfold20" FOURFOLD_START);

void set_progress(std::int64_t step, const char* phase) {
  if (own_rank == -2) MPI_Comm_rank(MPI_COMM_WORLD, &own_rank);
  if (step != own_step) met.clear();
  own_step = step;
  own_phase = phase;
  real_set_progress(step, phase);
  if (is("gate") && own_rank == 0 && own_phase == "forward") {
    const std::string gate = "gate." + std::to_string(step);
    while (access(gate.c_str(), F_OK) == 0) sleep_for(0.02);
  }
  if (!of_sums() && in_phase() && due("phase")) enter();
}

namespace {

// What is left of the operation; nothing: it is left out.
std::optional<std::span<float>> altered(std::span<float> data) {
  if (!of_sums() || !in_phase() || data.empty() || !due("sum")) return data;
  if (is("skip")) return std::nullopt;
  if (is("shorten")) return data.first(data.size() - 1);
  if (is("inf")) data[0] = std::numeric_limits<float>::infinity();
  return data;
}

}  // namespace

void sum(const Communicator& group, std::span<float> data, Summation summation, CallSite site) {
  const std::optional<std::span<float>> what = group.size() > 1 ? altered(data) : data;
  if (!what) return;
  real_sum(group, *what, summation, site);
}

Pending start(const Communicator& group, std::span<float> data, Summation summation, CallSite site) {
  if (group.size() == 1) return real_start(group, data, summation, site);
  if (held) {  // this one goes first
    Pending now = real_start(group, data, summation, site);
    const Held before = *held;
    held.reset();
    auto late = std::make_shared<Pending>(real_start(*before.group, before.data, before.summation, before.site));
    auto both = std::make_shared<Pending>(std::move(now));
    return Pending([late, both] {
      both->wait();
      late->wait();
    });
  }
  if (is("swap") && in_phase() && due("sum")) {
    held = Held{&group, data, summation, site};
    return {};
  }
  const std::optional<std::span<float>> what = is("swap") ? data : altered(data);
  if (!what) return {};
  return real_start(group, *what, summation, site);
}

namespace {

bool of_writes() {
  return is("short_write") || is("slow_write") || is("enospc") || is("flip") || is("flip_state") || is("kill_write");
}

bool is_the_file(const std::string& path, const char* ending = ".h5") {
  char name[40];
  std::snprintf(name, sizeof name, "/step_%08ld%s", fault().step, ending);
  return here() && (fault().file.empty() ? path.find(name) != std::string::npos : path.ends_with(fault().file));
}

std::string path_of(int descriptor) {
  char path[4096];
  const ssize_t length = readlink(("/proc/self/fd/" + std::to_string(descriptor)).c_str(), path, sizeof path);
  return length > 0 ? std::string(path, static_cast<std::size_t>(length)) : "";
}

bool is_the_file(int descriptor) {
  return is_the_file(path_of(descriptor));
}

void log(const char* call, const std::string& path) {
  if (!is("log") || path.find("/checkpoints") == std::string::npos) return;
  const std::string line = "log rank " + std::to_string(own_rank) + ": " + call + " " + path + "\n";
  syscall(SYS_write, STDERR_FILENO, line.data(), line.size());
}

// `put(data, size)`: the real write.
template <class Put>
ssize_t altered_write(int descriptor, const void* data, std::size_t size, const Put& put) {
  static bool full = false, done = false;
  static long writes = 0;
  if (!of_writes() || size < 2 || !is_the_file(descriptor)) return put(data, size);
  const bool now = writes++ >= fault().call;
  if (is("kill_write") && now) kill(getpid(), SIGKILL);
  if (is("slow_write") && now) sleep_for(fault().seconds);
  if (is("enospc") && (full || now)) {
    full = true;
    errno = ENOSPC;
    return -1;
  }
  if (is("short_write") && now && !done) {
    done = true;
    return put(data, size / 2);
  }
  const auto flipped = [&](std::size_t at) {
    done = true;
    std::vector<unsigned char> bytes(static_cast<const unsigned char*>(data),
                                     static_cast<const unsigned char*>(data) + size);
    bytes[at] ^= 1u;
    return put(bytes.data(), size);
  };
  // Of a dataset, which is larger than what HDF5 keeps beside.
  if (is("flip") && now && !done && size >= 4096) return flipped(size / 2);
  if (is("flip_state") && now && !done) {
    const std::string_view bytes(static_cast<const char*>(data), size);
    if (const std::size_t at = bytes.find("micro_batches"); at != std::string_view::npos) return flipped(at);
  }
  return put(data, size);
}

ssize_t put_at(int descriptor, const void* data, std::size_t size, off_t position) {
  if (is("log")) log("write", path_of(descriptor));
  return altered_write(descriptor, data, size, [&](const void* bytes, std::size_t count) {
    return static_cast<ssize_t>(syscall(SYS_pwrite64, descriptor, bytes, count, position));
  });
}

}  // namespace
}  // namespace fourfold::test

extern "C" {

ssize_t pwrite(int descriptor, const void* data, size_t size, off_t position) {
  return fourfold::test::put_at(descriptor, data, size, position);
}

ssize_t pwrite64(int descriptor, const void* data, size_t size, off64_t position) {
  return fourfold::test::put_at(descriptor, data, size, position);
}

ssize_t write(int descriptor, const void* data, size_t size) {
  if (fourfold::test::is("log")) fourfold::test::log("write", fourfold::test::path_of(descriptor));
  return fourfold::test::altered_write(descriptor, data, size, [&](const void* bytes, std::size_t count) {
    return static_cast<ssize_t>(syscall(SYS_write, descriptor, bytes, count));
  });
}

// Under another name here, since flock is a structure's too.
int refuse_lock(int descriptor, int operation) noexcept asm("flock");
int refuse_lock(int descriptor, int operation) noexcept {
  if (fourfold::test::is("no_locks") && fourfold::test::here()) {
    errno = ENOLCK;
    return -1;
  }
  return static_cast<int>(syscall(SYS_flock, descriptor, operation));
}

int fsync(int descriptor) {
  if (fourfold::test::is("log")) fourfold::test::log("fsync", fourfold::test::path_of(descriptor));
  return static_cast<int>(syscall(SYS_fsync, descriptor));
}

int rename(const char* from, const char* to) noexcept {
  using namespace fourfold::test;
  log("rename", to);
  if (is("kill_rename") && is_the_file(std::string(to))) kill(getpid(), SIGKILL);
  if (is("kill_commit") && is_the_file(std::string(to), ".commit")) kill(getpid(), SIGKILL);
  return static_cast<int>(syscall(SYS_rename, from, to));
}
}
