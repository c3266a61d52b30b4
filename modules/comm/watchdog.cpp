#include "comm/watchdog.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/timer.hpp"
#include "comm/abort.hpp"
#include "comm/hang_report.hpp"

namespace fourfold {

namespace {

constexpr double kFlushSeconds = 1.0;  // until other nodes see what was flushed
constexpr useconds_t kDeliveryMicro = 200000;

std::vector<RingSnapshot> read_rings(const std::string& folder, int ranks) {
  std::vector<RingSnapshot> rings;
  for (int rank = 0; rank < ranks; ++rank) {
    if (auto ring = read_ring(Watchdog::ring_path(folder, rank))) rings.push_back(std::move(*ring));
  }
  return rings;
}

// One rank speaks: the one that makes the file.
std::optional<int> report_file(const std::string& path) {
  const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  return descriptor < 0 ? std::nullopt : std::optional(descriptor);
}

}  // namespace

std::string Watchdog::ring_path(const std::string& folder, int rank) {
  char name[32];
  std::snprintf(name, sizeof name, "/rank_%06d.calls", rank);
  return folder + name;
}

std::string Watchdog::report_path(const std::string& folder) {
  return folder + "/hang.txt";
}

Watchdog::FolderAtEnd::~FolderAtEnd() {
  std::error_code not_empty;
  if (path.empty()) return;
  std::filesystem::remove(path, not_empty);
  std::filesystem::remove(std::filesystem::path(path).parent_path(), not_empty);
}

Watchdog::Watchdog(WatchOptions options, int rank, int ranks, const std::string& host)
    : options_(std::move(options)),
      rank_(rank),
      ranks_(ranks),
      folder_{options_.folder_goes ? options_.folder : ""},
      ring_(ring_path(options_.folder, rank), rank, host) {
  tell_progress(&ring_);
  // Signals are for the thread that trains.
  sigset_t all, former;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &former);
  thread_ = std::thread([this] { watch(); });
  pthread_sigmask(SIG_SETMASK, &former, nullptr);
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
  tell_progress(nullptr);
  if (std::uncaught_exceptions() == 0) ring_.remove_at_end();
}

void Watchdog::watch() {
  std::int64_t seen = ring_.changes();
  double stalled = 0;
  bool flushed = false;
  Stopwatch since;
  std::unique_lock lock(mutex_);
  for (;;) {
    const double limit = options_.limit(ring_.phase());
    const double pause = limit > 0 ? std::clamp(limit / 20, 0.02, 1.0) : 1.0;
    changed_.wait_for(lock, std::chrono::duration<double>(pause), [this] { return stop_; });
    if (stop_) return;
    // A job that was suspended has not hung meanwhile.
    const double passed = std::min(since.seconds(), 2 * pause);
    since.restart();
    if (ring_.changes() != seen) {
      seen = ring_.changes();
      stalled = 0;
      flushed = false;
      continue;
    }
    stalled += passed;
    if (limit <= 0) continue;
    if (!flushed && stalled > limit / 2) {
      ring_.flush();
      flushed = true;
    }
    if (stalled < limit + (limit > kFlushSeconds ? kFlushSeconds : 0)) continue;
    ring_.flush();
    const double longest = longest_limit();
    if (longest > 0 && stalled > longest) end_job(stalled);
  }
}

double Watchdog::longest_limit() const {
  double longest = 0;
  for (const RingSnapshot& ring : read_rings(options_.folder, ranks_)) {
    const double limit = options_.limit(ring.phase);
    if (limit <= 0) return 0;
    longest = std::max(longest, limit);
  }
  return longest;
}

void Watchdog::end_job(double seconds) const {
  const std::optional<int> file = report_file(report_path(options_.folder));
  if (!file) {  // another rank speaks, and its end is the others' end where the launcher sees to that
    sleep(5);
    _exit(static_cast<int>(ExitCode::error));
  }
  const std::vector<RingSnapshot> rings = read_rings(options_.folder, ranks_);
  const HangReport hang = find_hang(rings);
  const auto culprit =
      std::find_if(rings.begin(), rings.end(), [&](const RingSnapshot& ring) { return ring.rank == hang.rank; });
  std::string text;
  if (culprit == rings.end()) {
    text = "rank " + std::to_string(rank_) + ": nothing has moved and no rank's ring of calls can be read";
  } else {
    text = "rank " + std::to_string(culprit->rank) + " on " + culprit->host + ", step " +
           (culprit->step < 0 ? "-" : std::to_string(culprit->step)) + ", " + culprit->phase +
           ": holds up the run: " + hang.reason;
  }
  char tail[160];
  std::snprintf(tail, sizeof tail,
                "\n  said by the watchdog of rank %d after %.0f s without a movement (the deck's watchdog block)\n",
                rank_, seconds);
  text += hang.details + tail;
  for (const int to : {STDERR_FILENO, *file}) {
    if (write(to, text.data(), text.size()) < 0) continue;  // the exit code still speaks
  }
  usleep(kDeliveryMicro);
  _exit(static_cast<int>(ExitCode::error));
}

}  // namespace fourfold
