// A PMPI wrapper: linked into a test, it counts the real MPI calls that move data and what they were given, so that the
// ledger can be compared with what really passed. It works out the ring equivalents by itself.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace fourfold::test {

struct MpiTraffic {
  std::int64_t calls = 0;       // all of the calls below
  std::int64_t bytes = 0;       // given: all-reduce and broadcast count x size, gathers and scatters all parts, sends
  std::int64_t ring_bytes = 0;  // sent by this rank on a ring; the definitions of comm/ledger.hpp
  std::map<std::string, std::int64_t> calls_of;  // by MPI name
  std::int64_t outside = 0;        // calls of data-moving functions that modules/comm does not use: should be none
  std::int64_t communicators = 0;  // made by MPI_Comm_create_group, _create, _split or _dup
  std::int64_t introductions = 0;  // of the members of a new communicator, where they share memory
  std::int64_t freed = 0;          // by MPI_Comm_free
  std::int64_t foreign = 0;        // of `calls`, by another thread than the first that called: should be none
};

// Since the last clear; of this process.
const MpiTraffic& mpi_traffic();
void clear_mpi_traffic();

}  // namespace fourfold::test
