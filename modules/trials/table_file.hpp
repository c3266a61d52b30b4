// The finished rows as one HDF5 file, for other programs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "trials/table.hpp"

namespace fourfold::trials {

// FILE has /columns/NAME for each column of numbers, one element a row (fp64; not a number where a row has none),
// /timing/NAME for those that `timing` says differ from one run of the same trials to the next, and /texts/NAME for
// each other one, a line a row; `rows` are in the order given. Written under a temporary name, then renamed. `alone`: a
// group of this rank. Errors (Error, storage, one rank).
void write_table(const Communicator& alone, const std::string& file, const std::vector<Row>& rows,
                 const std::function<bool(const std::string& column)>& timing);

}  // namespace fourfold::trials
