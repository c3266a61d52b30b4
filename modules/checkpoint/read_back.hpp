// A file's small things and structure, as they come back from it.
#pragma once

#include <string>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/record.hpp"
#include "h5/file.hpp"

namespace fourfold::checkpoint {

// The format number is left out.
State read_state(const h5::File& file);

// One rank: that the state and the datasets' types, shapes and places, which no checksum of their makers covers, are
// those that were given to be written. Errors: Error (storage, one rank) naming the first that is not.
void check_read_back(const std::string& path, const State& state, const CommitRecord& record);

}  // namespace fourfold::checkpoint
