// What `fourfold report` shows of a study, from its rows alone.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "study/plan.hpp"
#include "study/points.hpp"
#include "study/text_table.hpp"

namespace fourfold::study {

struct Report {
  std::string folder;
  ListedStudy study;
  std::map<std::string, trials::TrialState> states;
  std::vector<Point> points;  // of `states`
  std::int64_t done = 0, failed = 0, missing = 0;
};

// Errors (input, one rank): no study's folder, or a damaged one.
Report read_report(const std::string& folder);

// Speed, phases, bytes, memory, losses, and what failed or is missing; tables without rows are left out.
std::vector<TextTable> tables_of(const Report& report);

// FOLDER/table.csv (a row a trial, all columns), points.csv (a row a point, what plots need), losses.csv (a row a step)
// and report.md. Errors (storage, one rank).
void write_report(const Report& report, const std::vector<TextTable>& tables);

// FOLDER/report.html: the tables, the plots that are in FOLDER/plots (SVG, in the page itself), deck and machine.
void write_page(const Report& report, const std::vector<TextTable>& tables, const std::vector<std::string>& plots);

}  // namespace fourfold::study
