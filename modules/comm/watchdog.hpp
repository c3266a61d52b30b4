// A thread that ends the job when nothing moves any more: no operation begun or ended and no phase entered for as long
// as the phase allows. It never calls MPI: every rank keeps its ring of calls (call_ring.hpp) in a file of a folder
// that all see, and the first rank whose time is up reads them all and says who holds up the run.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "comm/call_ring.hpp"

namespace fourfold {

// A rank whose time is up waits as long as the phase of the rank with the longest limit allows: a checkpoint that one
// rank still writes is no hang of the others, which go on to the next step.
struct WatchOptions {
  std::string folder;                                             // of the ring files
  std::function<double(std::string_view phase)> limit = nullptr;  // seconds; 0: for ever
  bool folder_goes = false;  // at the end, with the one above it, where nothing is left in them
};

class Watchdog {
 public:
  // The folder is there. Errors: Error (one rank, storage): no ring file can be made in it.
  Watchdog(WatchOptions options, int rank, int ranks, const std::string& host);
  // Without an exception on its way the ring file goes.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  CallRing& ring() { return ring_; }
  static std::string ring_path(const std::string& folder, int rank);
  // What the rank that spoke said; there from the end of a run that hung until the next one.
  static std::string report_path(const std::string& folder);

 private:
  void watch();
  struct FolderAtEnd {
    ~FolderAtEnd();
    std::string path;  // empty: stays
  };
  // Of all ranks' phases; 0: for ever.
  double longest_limit() const;
  [[noreturn]] void end_job(double seconds) const;

  WatchOptions options_;
  int rank_, ranks_;
  FolderAtEnd folder_;  // after the ring's file
  CallRing ring_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace fourfold
