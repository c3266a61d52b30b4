// The trials of equal settings (seeds and repeats apart) as one point, and points beside the smallest of their kind.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "study/plan.hpp"
#include "trials/table.hpp"

namespace fourfold::study {

struct Point {
  std::string name;  // "zero1, optimizer.lr 1e-3"
  std::string strategy;
  std::int64_t ranks = 1;
  std::string clock;                     // wall, virtual, oversubscribed; empty where no trial is done
  std::vector<const trials::Row*> rows;  // of the trials that are done
  std::int64_t wanted = 0;               // trials

  double step_seconds = 0, least = 0, most = 0;  // median over trials; least and most of their windows
  double tokens_per_second = 0;
  // Against the smallest rank count of the same name whose times are of the same clock; not a number where times are no
  // measure (oversubscribed) or there is none.
  double speed_up = 0, efficiency = 0;
  std::int64_t base_ranks = 0;  // of that point; 0: none

  double median_of(const std::string& column) const;  // over the trials
  // The text of the first trial.
  std::string text_of(const std::string& column) const;
};

// In the order of the study.
std::vector<Point> make_points(const ListedStudy& study, const std::map<std::string, trials::TrialState>& states);

}  // namespace fourfold::study
