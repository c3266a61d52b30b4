// Runs the trials of a study inside one launch: each on the first of its ranks, while the others sleep.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "comm/launch.hpp"
#include "study/plan.hpp"
#include "tensor/tensor.hpp"

namespace fourfold::study {

struct Job {
  const Launch& launch;
  // Makes collectives and memory of this launch use the pool for the life of the result. All ranks.
  std::function<std::shared_ptr<void>(Pool&)> attach;
  std::string version;  // of the program
};

struct RunOptions {
  std::string part;    // of the table: this job's own file
  bool retry = false;  // trials that failed before are run again
};

// Runs what of `chosen` is not done, and writes table.h5. Collective over the launch. A trial that all ranks refuse is
// listed as failed, and the next one begins; a trial in which the job dies is run again, from its start, until it has
// died study.attempts times. Returns done, again (a stop signal: the trial under way is saved), or error where a trial
// failed or wants more ranks than there are. The study's folder exists.
ExitCode run_trials(const Job& job, const Plan& plan, const std::vector<Trial>& chosen, const RunOptions& options);

}  // namespace fourfold::study
