// MPI's life: the only place (with the abort path) that names MPI_COMM_WORLD.
#pragma once

#include <functional>
#include <string>

#include "base/error.hpp"
#include "comm/communicator.hpp"

namespace fourfold {

// Initialises MPI (thread level FUNNELED, refused below), refuses N one-rank jobs (SLURM_NTASKS, PMI_SIZE,
// OMPI_COMM_WORLD_SIZE, PALS variables against MPI's size; exit 3), owns the world communicator and the ledger, installs
// terminate and new-handlers. Finalises MPI in its destructor unless an error is on its way.
class Launch {
 public:
  Launch(int* argc, char*** argv);
  ~Launch();
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  const Communicator& world() const { return *world_; }
  CommLedger& ledger() const { return *ledger_; }
  std::string host() const;         // this rank's host name
  std::string mpi_library() const;  // "Open MPI v4.1.4"

 private:
  std::unique_ptr<CommLedger> ledger_;
  std::unique_ptr<Communicator> world_;
};

// Where the program is, for the first line of an abort: "step 12, backward".
void set_progress(std::int64_t step, const char* phase);

// Runs `body` with the top-level handler: Error of all ranks -> rank 0 prints, every rank returns the code; anything else
// -> this rank prints "rank R on HOST, step S, PHASE: message", then MPI_Abort. Returns the exit code.
int run_guarded(const Launch& launch, const std::function<int()>& body);

}  // namespace fourfold
