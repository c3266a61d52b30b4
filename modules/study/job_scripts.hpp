// Slurm jobs for the parts of a study.
#pragma once

#include <string>
#include <vector>

#include "study/plan.hpp"

namespace fourfold::study {

// Writes FOLDER/ranks-N.sbatch for each rank count, report.sbatch, and submit.sh, which submits them one after the
// other. `deck` and `overrides` as they were typed. Returns submit.sh's path. Errors (storage, one rank).
std::string write_job_scripts(const Plan& plan, const std::string& folder, const std::string& deck,
                              const std::vector<std::string>& overrides);

}  // namespace fourfold::study
