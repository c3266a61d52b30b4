// MPI's life: the only place (with the abort path) that names MPI_COMM_WORLD.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/error.hpp"
#include "comm/communicator.hpp"
#include "comm/device.hpp"
#include "comm/scratch.hpp"
#include "comm/shared_memory.hpp"
#include "comm/watchdog.hpp"
#include "machine/machine.hpp"

namespace fourfold {

// Initialises MPI (thread level FUNNELED, refused below), refuses N one-rank jobs (the variables of srun, mpirun, PMI
// and PALS against MPI's size; every process says what to type and exits with 3; FOURFOLD_SINGLE=1 in the environment:
// one rank is meant), owns the world communicator and the ledger, and installs the abort path. Finalises MPI in its
// destructor unless an exception is on its way. Without a launcher the program is a job of one rank.
class Launch {
 public:
  Launch(int* argc, char*** argv);
  ~Launch();
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  const Communicator& world() const { return *world_; }
  CommLedger& ledger() const;
  const std::string& host() const { return host_; }                // this rank's host name
  const std::string& mpi_library() const { return mpi_library_; }  // "Open MPI v4.1.4"

  // Where collectives take their own buffers in the host's memory from (scratch.hpp). An empty function before what
  // `allocate` needs ends.
  void set_scratch_allocator(ScratchPool::Allocate allocate) const;
  std::int64_t scratch_allocations() const;
  // A device whose memory collectives are given from now on, and where they take their own buffers in it from; null:
  // none any more. For the world and the communicators made of it from now on. Tries whether MPI moves that memory
  // (small messages round all ranks) if it says that it does. All ranks, with no operation under way.
  void set_device(std::shared_ptr<Device> device, ScratchPool::Allocate allocate) const;
  // "collectives: NCCL; messages: through the host's memory": what set_device came to.
  std::string device_summary() const;
  // From now on the ranks of a node read and write each other's memory for collectives on buffers that all members took
  // from shared_memory(): of the world, unless its ranks are on several nodes, and of communicators made from now on.
  // Same order of additions, ledger and virtual clock as without. All ranks. Returns why it cannot be, on all ranks the
  // same; empty where it can, or where each node has one rank.
  std::string share_memory() const;
  // Null: they do not.
  const std::shared_ptr<SharedMemory>& shared_memory() const;
  // The bytes of the smallest operation for which they do. All ranks. For tests of small ones and of none.
  void share_from(std::int64_t bytes) const;
  // The topology of a machine file in place of the real one: nodes of `ranks_per_node` ranks, filled one after the
  // other (node_of, between_nodes, the ledger). For the world and communicators made of it from now on.
  void emulate_nodes(std::int64_t ranks_per_node) const;
  // The nodes of this machine, which must have world().size() ranks at least, and its virtual clock, from zero. All
  // ranks, with no operation under way.
  void emulate(const Machine& machine) const;
  // From now on a rank's operations leave their places in a ring, and a thread ends the job when nothing moves
  // (watchdog.hpp). All ranks. Returns why there is none, on all ranks the same: the folder cannot be written.
  std::string watch(const WatchOptions& options) const { return watch(options, *world_); }
  // The same for a group of the world's first ranks, by these alone; the others may sleep.
  std::string watch(const WatchOptions& options, const Communicator& group) const;
  // No more: the group's ranks, with no operation under way.
  void end_watch() const;
  // From now on the members of a group compare what they are about to do before each of its collectives (operation,
  // counts, type, in which the odd ones are named). All ranks. Costs a small gather each.
  void check_calls() const;
  // Bytes given to one MPI call at most, below 2^31; longer transfers are cut. For tests of the cutting.
  void set_transfer_limit(std::int64_t bytes) const;

 private:
  friend int run_guarded(const Launch& launch, const std::function<int()>& body);
  // Whether every rank arrives here within `seconds`.
  bool all_arrive(double seconds) const;

  std::string host_, mpi_library_;
  std::unique_ptr<CommState> state_;
  mutable std::unique_ptr<Watchdog> watchdog_;
  std::unique_ptr<Communicator> world_;
  std::unique_ptr<Communicator> verdict_;  // for run_guarded alone, so that it meets no message of the run
};

// Where the program is, for the first line of an abort: "step 12, backward". Cheap.
void set_progress(std::int64_t step, const char* phase);

// Runs `body` with the top-level handler and returns the exit code. Error of all ranks: rank 0 prints
// "fourfold: error: message" to stderr and every rank returns the code, once all have come to the same verdict (a rank
// that waits for the others in vain aborts the job). Anything else: this rank prints
// "rank R on HOST, step S, PHASE: message" and the job is aborted with the code.
int run_guarded(const Launch& launch, const std::function<int()>& body);

}  // namespace fourfold
