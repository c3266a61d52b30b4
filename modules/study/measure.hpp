// From what a finished trial left behind to its row of the table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "study/plan.hpp"
#include "study/session.hpp"
#include "trials/table.hpp"

namespace fourfold::study {

// Steps of a session that are not in its times.
inline constexpr std::int64_t kWarmUpSteps = 2;

struct StepLine {
  std::int64_t step = 0, tokens = 0;
  double loss = 0, seconds = 0;
  double model_flops = 0;  // of the step
  double ceiling = 0;      // FLOP/s; 0: not known
  bool warm = false;       // not among the first of its session
};

struct RunLog {
  std::vector<StepLine> steps;  // each once, as it was done last
  double eval_loss = 0;         // of the last evaluation
  bool evaluated = false;
  std::vector<std::pair<std::string, double>> phases;  // seconds of all sessions: a rank's mean
};
// metrics.jsonl of a run. Errors (input, one rank): no such file.
RunLog read_run_log(const std::string& file);

// Means of the parts that `times` are cut into: at least three, ten of long runs (fewer only where there are fewer
// times).
std::vector<double> window_means(const std::vector<double>& times);
double median(std::vector<double> values);  // not a number of none

// What the ranks of a trial ran on.
struct Place {
  std::int64_t nodes = 1;
  bool oversubscribed = false;  // more ranks than cores
  std::string hosts, mpi, version;
};

// Predicted bytes of parameters, gradients and optimizer on the rank that has most of each.
struct Predicted {
  std::int64_t parameters = 0, gradients = 0, optimizer = 0;
};

// Columns that differ from one run of the same trial to the next.
bool is_timing(const std::string& column);

// `run_folder`: the trial's own.
trials::Row make_row(const Trial& trial, const StudyDeck& study, const std::vector<SessionReport>& sessions,
                     const std::string& run_folder, const Place& place, const Predicted& predicted);

}  // namespace fourfold::study
