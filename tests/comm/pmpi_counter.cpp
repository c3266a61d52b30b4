#include "comm/pmpi_counter.hpp"

#include <mpi.h>

#include <numeric>
#include <thread>

namespace {

fourfold::test::MpiTraffic traffic;

struct Place {
  explicit Place(MPI_Comm comm) {
    PMPI_Comm_rank(comm, &rank);
    PMPI_Comm_size(comm, &size);
  }
  int rank = 0, size = 1;
};

void note_thread() {
  static const std::thread::id first = std::this_thread::get_id();
  if (std::this_thread::get_id() != first) ++traffic.foreign;
}

std::int64_t bytes_of(std::int64_t count, MPI_Datatype type) {
  int size = 0;
  PMPI_Type_size(type, &size);
  return count * size;
}

void count(const char* name, std::int64_t given, std::int64_t ring, MPI_Datatype type) {
  note_thread();
  ++traffic.calls;
  ++traffic.calls_of[name];
  traffic.bytes += bytes_of(given, type);
  traffic.ring_bytes += bytes_of(ring, type);
}

void outside(const char* name) {
  note_thread();
  ++traffic.calls;
  ++traffic.calls_of[name];
  ++traffic.outside;
}

void count_all_reduce(const char* name, int elements, MPI_Datatype type, MPI_Comm comm) {
  const Place here(comm);
  const int own = elements / here.size + (here.rank < elements % here.size ? 1 : 0);
  count(name, elements, 2 * std::int64_t{elements - own}, type);
}

void count_parts(const char* name, const int counts[], MPI_Datatype type, MPI_Comm comm) {
  const Place here(comm);
  const std::int64_t total = std::accumulate(counts, counts + here.size, std::int64_t{0});
  count(name, total, total - counts[here.rank], type);
}

void count_broadcast(const char* name, int elements, int root, MPI_Datatype type, MPI_Comm comm) {
  const Place here(comm);
  count(name, elements, (here.rank + 1) % here.size == root ? 0 : elements, type);
}

}  // namespace

namespace fourfold::test {

const MpiTraffic& mpi_traffic() {
  return traffic;
}
void clear_mpi_traffic() {
  traffic = MpiTraffic();
}

}  // namespace fourfold::test

extern "C" {

// What modules/comm uses.
int MPI_Iallreduce(const void* send, void* receive, int elements, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                   MPI_Request* request) {
  count_all_reduce("MPI_Iallreduce", elements, type, comm);
  return PMPI_Iallreduce(send, receive, elements, type, op, comm, request);
}
int MPI_Iallgatherv(const void* send, int elements, MPI_Datatype send_type, void* receive, const int counts[],
                    const int displacements[], MPI_Datatype type, MPI_Comm comm, MPI_Request* request) {
  count_parts("MPI_Iallgatherv", counts, type, comm);
  return PMPI_Iallgatherv(send, elements, send_type, receive, counts, displacements, type, comm, request);
}
int MPI_Ireduce_scatter(const void* send, void* receive, const int counts[], MPI_Datatype type, MPI_Op op,
                        MPI_Comm comm, MPI_Request* request) {
  count_parts("MPI_Ireduce_scatter", counts, type, comm);
  return PMPI_Ireduce_scatter(send, receive, counts, type, op, comm, request);
}
int MPI_Ibcast(void* data, int elements, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request* request) {
  count_broadcast("MPI_Ibcast", elements, root, type, comm);
  return PMPI_Ibcast(data, elements, type, root, comm, request);
}
int MPI_Isend(const void* data, int elements, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  count("MPI_Isend", elements, elements, type);
  return PMPI_Isend(data, elements, type, to, tag, comm, request);
}
int MPI_Irecv(void* data, int elements, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request* request) {
  count("MPI_Irecv", 0, 0, type);
  return PMPI_Irecv(data, elements, type, from, tag, comm, request);
}
int MPI_Ibarrier(MPI_Comm comm, MPI_Request* request) {
  count("MPI_Ibarrier", 0, 0, MPI_BYTE);
  return PMPI_Ibarrier(comm, request);
}

// Members of a new communicator tell each other where they share memory.
int MPI_Iallgather(const void* send, int elements, MPI_Datatype send_type, void* receive, int each, MPI_Datatype type,
                   MPI_Comm comm, MPI_Request* request) {
  ++traffic.introductions;
  return PMPI_Iallgather(send, elements, send_type, receive, each, type, comm, request);
}
int MPI_Comm_create_group(MPI_Comm comm, MPI_Group group, int tag, MPI_Comm* made) {
  ++traffic.communicators;
  return PMPI_Comm_create_group(comm, group, tag, made);
}
int MPI_Comm_create(MPI_Comm comm, MPI_Group group, MPI_Comm* made) {
  ++traffic.communicators;
  return PMPI_Comm_create(comm, group, made);
}
int MPI_Comm_split(MPI_Comm comm, int colour, int key, MPI_Comm* made) {
  ++traffic.communicators;
  return PMPI_Comm_split(comm, colour, key, made);
}
int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* made) {
  ++traffic.communicators;
  return PMPI_Comm_dup(comm, made);
}

int MPI_Comm_free(MPI_Comm* comm) {
  ++traffic.freed;
  return PMPI_Comm_free(comm);
}

// What it does not: any of these in a test has passed beside the ledger.
int MPI_Allreduce(const void* send, void* receive, int elements, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  outside("MPI_Allreduce");
  return PMPI_Allreduce(send, receive, elements, type, op, comm);
}
int MPI_Reduce(const void* send, void* receive, int elements, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm) {
  outside("MPI_Reduce");
  return PMPI_Reduce(send, receive, elements, type, op, root, comm);
}
int MPI_Reduce_scatter(const void* send, void* receive, const int counts[], MPI_Datatype type, MPI_Op op,
                       MPI_Comm comm) {
  outside("MPI_Reduce_scatter");
  return PMPI_Reduce_scatter(send, receive, counts, type, op, comm);
}
int MPI_Reduce_scatter_block(const void* send, void* receive, int elements, MPI_Datatype type, MPI_Op op,
                             MPI_Comm comm) {
  outside("MPI_Reduce_scatter_block");
  return PMPI_Reduce_scatter_block(send, receive, elements, type, op, comm);
}
int MPI_Allgather(const void* send, int elements, MPI_Datatype send_type, void* receive, int each, MPI_Datatype type,
                  MPI_Comm comm) {
  outside("MPI_Allgather");
  return PMPI_Allgather(send, elements, send_type, receive, each, type, comm);
}
int MPI_Allgatherv(const void* send, int elements, MPI_Datatype send_type, void* receive, const int counts[],
                   const int displacements[], MPI_Datatype type, MPI_Comm comm) {
  outside("MPI_Allgatherv");
  return PMPI_Allgatherv(send, elements, send_type, receive, counts, displacements, type, comm);
}
int MPI_Gather(const void* send, int elements, MPI_Datatype send_type, void* receive, int each, MPI_Datatype type,
               int root, MPI_Comm comm) {
  outside("MPI_Gather");
  return PMPI_Gather(send, elements, send_type, receive, each, type, root, comm);
}
int MPI_Gatherv(const void* send, int elements, MPI_Datatype send_type, void* receive, const int counts[],
                const int displacements[], MPI_Datatype type, int root, MPI_Comm comm) {
  outside("MPI_Gatherv");
  return PMPI_Gatherv(send, elements, send_type, receive, counts, displacements, type, root, comm);
}
int MPI_Scatter(const void* send, int each, MPI_Datatype send_type, void* receive, int elements, MPI_Datatype type,
                int root, MPI_Comm comm) {
  outside("MPI_Scatter");
  return PMPI_Scatter(send, each, send_type, receive, elements, type, root, comm);
}
int MPI_Scatterv(const void* send, const int counts[], const int displacements[], MPI_Datatype send_type, void* receive,
                 int elements, MPI_Datatype type, int root, MPI_Comm comm) {
  outside("MPI_Scatterv");
  return PMPI_Scatterv(send, counts, displacements, send_type, receive, elements, type, root, comm);
}
int MPI_Bcast(void* data, int elements, MPI_Datatype type, int root, MPI_Comm comm) {
  outside("MPI_Bcast");
  return PMPI_Bcast(data, elements, type, root, comm);
}
int MPI_Alltoall(const void* send, int each, MPI_Datatype send_type, void* receive, int elements, MPI_Datatype type,
                 MPI_Comm comm) {
  outside("MPI_Alltoall");
  return PMPI_Alltoall(send, each, send_type, receive, elements, type, comm);
}
int MPI_Alltoallv(const void* send, const int send_counts[], const int send_at[], MPI_Datatype send_type, void* receive,
                  const int counts[], const int at[], MPI_Datatype type, MPI_Comm comm) {
  outside("MPI_Alltoallv");
  return PMPI_Alltoallv(send, send_counts, send_at, send_type, receive, counts, at, type, comm);
}
int MPI_Ialltoallv(const void* send, const int send_counts[], const int send_at[], MPI_Datatype send_type,
                   void* receive, const int counts[], const int at[], MPI_Datatype type, MPI_Comm comm,
                   MPI_Request* request) {
  outside("MPI_Ialltoallv");
  return PMPI_Ialltoallv(send, send_counts, send_at, send_type, receive, counts, at, type, comm, request);
}
int MPI_Scan(const void* send, void* receive, int elements, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  outside("MPI_Scan");
  return PMPI_Scan(send, receive, elements, type, op, comm);
}
int MPI_Exscan(const void* send, void* receive, int elements, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  outside("MPI_Exscan");
  return PMPI_Exscan(send, receive, elements, type, op, comm);
}
int MPI_Send(const void* data, int elements, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
  outside("MPI_Send");
  return PMPI_Send(data, elements, type, to, tag, comm);
}
int MPI_Ssend(const void* data, int elements, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
  outside("MPI_Ssend");
  return PMPI_Ssend(data, elements, type, to, tag, comm);
}
int MPI_Issend(const void* data, int elements, MPI_Datatype type, int to, int tag, MPI_Comm comm,
               MPI_Request* request) {
  count("MPI_Issend", elements, elements, type);
  return PMPI_Issend(data, elements, type, to, tag, comm, request);
}
int MPI_Recv(void* data, int elements, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Status* status) {
  outside("MPI_Recv");
  return PMPI_Recv(data, elements, type, from, tag, comm, status);
}
int MPI_Sendrecv(const void* send, int elements, MPI_Datatype send_type, int to, int send_tag, void* receive, int most,
                 MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Status* status) {
  outside("MPI_Sendrecv");
  return PMPI_Sendrecv(send, elements, send_type, to, send_tag, receive, most, type, from, tag, comm, status);
}
int MPI_Send_init(const void* data, int elements, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                  MPI_Request* request) {
  outside("MPI_Send_init");
  return PMPI_Send_init(data, elements, type, to, tag, comm, request);
}
int MPI_Recv_init(void* data, int elements, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request* request) {
  outside("MPI_Recv_init");
  return PMPI_Recv_init(data, elements, type, from, tag, comm, request);
}
int MPI_Put(const void* data, int elements, MPI_Datatype type, int to, MPI_Aint at, int count_there,
            MPI_Datatype type_there, MPI_Win window) {
  outside("MPI_Put");
  return PMPI_Put(data, elements, type, to, at, count_there, type_there, window);
}
int MPI_Get(void* data, int elements, MPI_Datatype type, int from, MPI_Aint at, int count_there,
            MPI_Datatype type_there, MPI_Win window) {
  outside("MPI_Get");
  return PMPI_Get(data, elements, type, from, at, count_there, type_there, window);
}
int MPI_Accumulate(const void* data, int elements, MPI_Datatype type, int to, MPI_Aint at, int count_there,
                   MPI_Datatype type_there, MPI_Op op, MPI_Win window) {
  outside("MPI_Accumulate");
  return PMPI_Accumulate(data, elements, type, to, at, count_there, type_there, op, window);
}

}  // extern "C"
