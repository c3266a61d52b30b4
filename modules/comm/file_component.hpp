// Which component of Open MPI moves the bytes of parallel files: "ompio" or "romio321".
#pragma once

#include <string>

namespace fourfold {

// For this process, before it opens its first file through MPI. Returns why that cannot be, else nothing.
std::string choose_file_component(const std::string& name);

// The one that has opened a file in this process; empty before, and where it is no library of its own.
std::string file_component_in_use();

}  // namespace fourfold
