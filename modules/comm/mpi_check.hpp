// Every return of MPI is looked at here. Included by this module's sources only.
#pragma once

#include <mpi.h>

#include <string>

namespace fourfold {

std::string mpi_error_text(int code);

// Errors: Error (one rank) with the operation, the group, this rank's place in it and MPI's text.
void check_mpi(int code, const char* operation, const std::string& group, int rank, int size);

}  // namespace fourfold
