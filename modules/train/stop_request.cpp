#include "train/stop_request.hpp"

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/stop_flag.hpp"
#include "base/timer.hpp"
#include "comm/collectives.hpp"

namespace fourfold {

namespace {

// Wishes: 0: go on; a signal's number; these.
constexpr std::int32_t kFile = 1000;
constexpr std::int32_t kTime = 1001;
constexpr std::int64_t kLookEveryNs = 500'000'000;  // at the file system
constexpr double kSaveGuess = 300;                  // seconds

}  // namespace

SessionEnd session_end(double time_limit, std::int64_t started_ns) {
  SessionEnd end;
  if (time_limit > 0) end = {started_ns + static_cast<std::int64_t>(time_limit * 1e9), time_limit, "run.time_limit"};
  const char* text = std::getenv("SLURM_JOB_END_TIME");
  char* rest = nullptr;
  const long long epoch = text != nullptr ? std::strtoll(text, &rest, 10) : 0;
  if (epoch <= 0 || *rest != '\0') return end;
  const std::int64_t now = now_ns();
  const std::int64_t at = now + (epoch - static_cast<std::int64_t>(std::time(nullptr))) * 1'000'000'000;
  if (end.at_ns != 0 && end.at_ns <= at) return end;
  return {at, static_cast<double>(at - started_ns) * 1e-9, "Slurm (SLURM_JOB_END_TIME)"};
}

StopRequest::StopRequest(const Communicator& world, std::string folder, SessionEnd end)
    : world_(world), folder_(std::move(folder)), end_(std::move(end)) {}

void StopRequest::took_step(double seconds) {
  slowest_step_ = std::max(slowest_step_, seconds);
}

double StopRequest::seconds_kept() const {
  const double save = save_seconds_ >= 0 ? save_seconds_ : std::min(end_.whole / 10, kSaveGuess);
  return 1.5 * save + 2 * slowest_step_;
}

// This rank's.
std::int32_t StopRequest::wish() const {
  if (const int signal = stop_signal(); signal != 0) return signal;
  if (world_.rank() != 0) return 0;
  if (end_.at_ns != 0 && static_cast<double>(end_.at_ns - now_ns()) * 1e-9 < seconds_kept()) return kTime;
  std::error_code ignored;
  return std::filesystem::exists(file(), ignored) ? kFile : 0;
}

std::string StopRequest::text_of(std::int32_t wish) const {
  if (wish == kFile) return "the file " + file();
  if (wish == kTime) return "the time limit (" + end_.who + ")";
  return signal_name(wish);
}

bool StopRequest::look() {
  if (seen_ != 0) return false;
  if (stop_signal() == 0) {
    const std::int64_t now = now_ns();
    if (now - looked_ns_ < kLookEveryNs) return false;
    looked_ns_ = now;
  }
  seen_ = wish();
  if (seen_ != 0) reason_ = text_of(seen_);
  return seen_ != 0;
}

bool StopRequest::agreed() {
  if (agreed_) return true;
  std::int32_t all = seen_ != 0 ? seen_ : wish();
  all_reduce_max<std::int32_t>(world_, {&all, 1}, Phase::control);
  if (all == 0) return false;
  reason_ = text_of(all);
  agreed_ = true;
  return true;
}

void StopRequest::clear_file() const {
  std::error_code ignored;
  if (world_.rank() == 0) std::filesystem::remove(file(), ignored);
}

}  // namespace fourfold
