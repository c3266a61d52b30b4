#include "sent_between_nodes.hpp"

#include <mpi.h>

#include "comm/launch.hpp"
#include "mpi_test.hpp"

namespace fourfold::test {

std::int64_t sent_between_nodes = 0;

}  // namespace fourfold::test

extern "C" {
int MPI_Isend(const void* data, int elements, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  MPI_Group group = MPI_GROUP_NULL;
  MPI_Group all = MPI_GROUP_NULL;
  int rank = 0;
  PMPI_Comm_group(comm, &group);
  PMPI_Comm_group(MPI_COMM_WORLD, &all);
  PMPI_Group_translate_ranks(group, 1, &to, all, &rank);
  PMPI_Group_free(&group);
  PMPI_Group_free(&all);
  const fourfold::Communicator& world = fourfold::test::launch().world();
  if (world.node_of(rank) != world.node_of(world.rank())) ++fourfold::test::sent_between_nodes;
  return PMPI_Isend(data, elements, type, to, tag, comm, request);
}
}
