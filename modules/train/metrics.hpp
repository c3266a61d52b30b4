// metrics.jsonl: one JSON object a line, flushed. A restarted run appends; a reader takes a step's last line.
//
//   {"step":1,"loss":..,"grad_norm":..,"lr":..,"tokens":..,"seconds":..,"tokens_per_second":..,
//   "model_flops_per_second":..,"utilisation":..}   the last, model FLOP/s over the ceiling, where that is known;
//   "skipped":"..." where the step was left out, with null for what is not finite
//   with mixtures of experts also "moe":{"aux_loss":..,"z_loss":..,"layers":[{"layer":1,"aux":..,"z":..,"dropped":..,
//   "max_load":..,"entropy":..}]}   losses without their factors, the first two of all layers together; dropped: share
//   of the pairs of token and expert; max_load: over the mean; entropy of the router's probabilities, nats a token
//   {"event":"eval","step":50,"loss":..,"samples":..,"targets":..,"seconds":..,"bits_per_byte":..}   (the last where
//   tokens are text)
//   {"event":"restart","step":50}
//   {"event":"migration","step":50,"seconds":..,"layers":[{"layer":1,"before":1.63,"after":1.08,"swaps":[[0,13],[5,9]]}]}
//   a look at the loads of experts: of a rank's loads the largest over the mean, before and after these swaps
//   {"event":"checkpoint","step":50,"bytes":..,"seconds":..,"write_seconds":..,"fsync_seconds":..,"blocked_seconds":..,
//   "gigabytes_per_second":..}   once it is committed; blocked: training waited
//   {"event":"communication","step":50,"axes":[{"axis":"data","operations":..,"messages":..,"bytes_inside":..,
//   "bytes_between":..,"exposed_mean":..,"exposed_largest":..,"virtual_mean":..,"virtual_largest":..}],
//   "virtual_picoseconds":..}   at a session's end, of its steps; the virtual ones where a machine is emulated
//   {"event":"flops","step":50,"model_per_token":..,"computed_per_token":..}   at its end too: by all ranks together,
//   what they repeat and what backward computes again included
//   {"event":"phases","step":50,"seconds":..,"mean":{"start":..,"input":..,"forward":..},"largest":{..}}   at its end
//   too
//   {"event":"ranks","step":50,"computing_least":..,"computing_median":..,"computing_largest":..,"slowest":3,"host":"..",
//   "waiting_median":..,"waiting_largest":..}   at its end, of several ranks: seconds of a step, and who computes
//   longest
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <set>
#include <string>

#include "checkpoint/checkpoint.hpp"
#include "train/calibrate.hpp"
#include "train/evaluate.hpp"
#include "train/phases.hpp"
#include "train/slow_ranks.hpp"
#include "train/traffic.hpp"
#include "train/trainer.hpp"

namespace fourfold {

// Numbers are written so that they read back to the same double. Used by one rank.
class Metrics {
 public:
  // Opens <folder>/metrics.jsonl for appending (the folder exists). A last line that a killed run left unfinished is
  // cut off. `resumed_step`: the step the run goes on from, noted as a restart where the file already holds lines;
  // lines of later steps stay, as history. Errors (Error, storage, one rank): the file cannot be opened, read or
  // written.
  Metrics(const std::string& folder, std::int64_t resumed_step, Ceiling ceiling = {});

  void write(const StepReport& report, double model_flops);  // FLOPs of the step on all ranks
  void write(const MigrationReport& report);
  void write(std::int64_t step, const EvalReport& report);
  void write(std::int64_t step, const checkpoint::SaveReport& report);
  void write(std::int64_t step, const TrafficReport& report);
  void write(std::int64_t step, const PhaseReport& report);
  void write(std::int64_t step, const SlowRanks& report);
  void write_flops(std::int64_t step, double model_per_token, double computed_per_token);

  // Whether the file held an evaluation of this step when it was opened.
  bool had_eval(std::int64_t step) const { return evaluated_.contains(step); }

 private:
  void put(const std::string& line);

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  Ceiling ceiling_;
  std::unique_ptr<std::FILE, Close> file_;
  std::set<std::int64_t> evaluated_;
};

}  // namespace fourfold
