// The folder of checkpoints: names, order by number, what stays and what goes. One rank's work.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/record.hpp"

namespace fourfold::checkpoint {

// Paths of a step: FOLDER/step_00000100.h5 and beside it .commit, .rejected; temporaries end in .tmp.
struct StepFiles {
  StepFiles(const std::string& folder, std::int64_t step);
  std::string data, commit, rejected, temporary;
};

// The step of "step_00000100.commit" for ending ".commit"; none for other names.
std::optional<std::int64_t> step_named(const std::string& name, const std::string& ending);
// Steps that have a file of this ending, ascending by number.
std::vector<std::int64_t> steps_with(const std::string& folder, const std::string& ending);

// The record of a committed step, after checking it against its file: size and bytes outside the datasets.
// Errors: Error (one rank) with the reason.
CommitRecord verified_record(const std::string& folder, std::int64_t step);

// Removes what interrupted saves left: temporaries, data without a record, records without data. Returns what it did.
std::vector<std::string> remove_leftovers(const std::string& folder);

// Removes committed steps of the run below the newest `keep` of those up to `saved`, never options.resumed_from, nor
// steps of other runs or remembered as damaged. Returns what it did, and what it could not do.
std::vector<std::string> rotate(const std::string& folder, std::int64_t saved, const SaveOptions& options);

// Ends the step's existence: first its record, then what is remembered about it.
void uncommit(const std::string& folder, std::int64_t step);

}  // namespace fourfold::checkpoint
