#include "comm/mpi_facts.hpp"

#include <mpi.h>

#include "comm/mpi_check.hpp"

namespace fourfold {

std::string mpi_standard() {
  int version = 0, subversion = 0;
  check_mpi(MPI_Get_version(&version, &subversion), "MPI_Get_version", "world", -1, -1);
  return std::to_string(version) + "." + std::to_string(subversion);
}

std::string mpi_thread_level() {
  int level = MPI_THREAD_SINGLE;
  check_mpi(MPI_Query_thread(&level), "MPI_Query_thread", "world", -1, -1);
  return level == MPI_THREAD_MULTIPLE ? "multiple" : level == MPI_THREAD_SERIALIZED ? "serialized" : "funneled";
}

}  // namespace fourfold
