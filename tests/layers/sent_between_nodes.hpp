// Real messages of this rank to ranks of other emulated nodes (MPI_Isend, over PMPI).
#pragma once

#include <cstdint>

namespace fourfold::test {

extern std::int64_t sent_between_nodes;

}  // namespace fourfold::test
