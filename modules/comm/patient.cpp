#include "comm/patient.hpp"

#include <unistd.h>

#include "comm/mpi_check.hpp"
#include "comm/mpi_handle.hpp"

namespace fourfold {

bool patient_any(const Communicator& group, bool mine) {
  if (group.size() == 1) return mine;
  const auto check = [&](int code, const char* what) {
    check_mpi(code, what, group.name(), group.rank(), group.size());
  };
  const int wish = mine ? 1 : 0;
  int any = 0;
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Iallreduce(&wish, &any, 1, MPI_INT, MPI_MAX, group.handle().comm, &request), "MPI_Iallreduce");
  constexpr useconds_t kLongest = 5000;  // microseconds
  useconds_t pause = 50;
  for (int done = 0;;) {
    check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done != 0) return any != 0;
    usleep(pause);
    if (pause < kLongest) pause *= 2;
  }
}

}  // namespace fourfold
