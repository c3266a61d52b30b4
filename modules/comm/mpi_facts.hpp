// What the MPI library says of itself, beside its name (Launch::mpi_library). After Launch has begun.
#pragma once

#include <string>

namespace fourfold {

std::string mpi_standard();      // "3.1"
std::string mpi_thread_level();  // "funneled", what the library gave: at least that

}  // namespace fourfold
