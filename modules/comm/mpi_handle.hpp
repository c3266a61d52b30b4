// The one place where MPI shows outside of this module's sources: modules/h5 hands the communicator to parallel HDF5.
#pragma once

#include <mpi.h>

namespace fourfold {

struct MpiHandle {
  enum class Ownership { owned, borrowed };

  // Takes the communicator over; `borrowed` (MPI_COMM_SELF, for groups of one rank) is not freed. Makes MPI return its
  // errors. Errors: assertion on MPI_COMM_NULL.
  MpiHandle(MPI_Comm communicator, Ownership owner);
  // Frees, but not while an exception is on its way or after MPI has ended: MPI_Comm_free may wait for other ranks.
  ~MpiHandle();
  MpiHandle(const MpiHandle&) = delete;
  MpiHandle& operator=(const MpiHandle&) = delete;

  MPI_Comm comm;
  Ownership ownership;
};

}  // namespace fourfold
