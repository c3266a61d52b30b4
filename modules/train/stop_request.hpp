// Whether to stop early: a signal on any rank, the file <folder>/STOP, or time that runs out, agreed by all ranks: they
// leave after the same step, with one checkpoint.
#pragma once

#include <cstdint>
#include <string>

#include "comm/communicator.hpp"

namespace fourfold {

// When a session must have ended: a moment of the clock of now_ns(), and who says so.
struct SessionEnd {
  std::int64_t at_ns = 0;  // 0: never
  double whole = 0;        // seconds from the session's start to it
  std::string who;         // "run.time_limit", "Slurm (SLURM_JOB_END_TIME)"
};

// The earlier of `time_limit` seconds (0: none) after `started_ns` and Slurm's end of the job, from this environment.
SessionEnd session_end(double time_limit, std::int64_t started_ns);

class StopRequest {
 public:
  StopRequest(const Communicator& world, std::string folder, SessionEnd end = {});

  // Looks at this rank's signals and, on rank 0, at the stop file and the clock, now and then. What it saw is agreed
  // on later. Cheap; for all moments between agreements. Whether it saw a reason for the first time.
  bool look();
  // Collective: true on all ranks once any rank has a reason, and for ever after.
  bool agreed();
  // "SIGUSR1", "the file runs/a/STOP"; empty before look() or agreed() was true.
  const std::string& reason() const { return reason_; }
  // Collective: removes the stop file once it has been obeyed, so that the next run goes on.
  void clear_file() const;

  // What steps and saves take: time runs out 1.5 x the last save and 2 x the slowest step before the end, so that the
  // step under way and the save still fit. Before the first save it is taken for a tenth of the session, at most 5
  // minutes. Only rank 0's count.
  void took_step(double seconds);
  void took_save(double seconds) { save_seconds_ = seconds; }
  double seconds_kept() const;
  const SessionEnd& end() const { return end_; }

 private:
  std::string file() const { return folder_ + "/STOP"; }
  std::string text_of(std::int32_t wish) const;
  std::int32_t wish() const;

  const Communicator& world_;
  std::string folder_;
  SessionEnd end_;
  double save_seconds_ = -1;  // below 0: none yet
  double slowest_step_ = 0;
  std::int64_t looked_ns_ = 0;
  std::int32_t seen_ = 0;
  std::string reason_;
  bool agreed_ = false;
};

}  // namespace fourfold
