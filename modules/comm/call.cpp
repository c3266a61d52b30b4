#include "comm/call.hpp"

#include <algorithm>
#include <string>

#include "base/error.hpp"
#include "comm/comm_state.hpp"
#include "comm/mpi_check.hpp"

namespace fourfold {

Call::Call(const Communicator& group, Operation operation, Phase phase)
    : handle_(group.handle_),
      state_(group.state_),
      key_{operation, group.name(), phase},
      rank_(group.rank()),
      size_(group.size()),
      between_nodes_(group.between_nodes()) {}

CommLedger& Call::ledger() const {
  return state_->ledger;
}

ScratchPool::Lease Call::scratch(std::int64_t bytes) const {
  return state_->scratch.take(bytes);
}

void Call::record(std::int64_t elements, std::int64_t element_size, std::int64_t ring_elements) {
  state_->ledger.record(key_, elements, element_size, ring_elements, between_nodes_);
}

std::int64_t Call::chunk(std::int64_t element_size, std::int64_t multiple) const {
  const std::int64_t most = state_->transfer_limit / element_size;
  return std::max(most / multiple, std::int64_t{1}) * multiple;
}

void Call::check(int code) const {
  check_mpi(code, operation_name(key_.operation).data(), key_.group, rank_, size_);
}

void Call::wait() {
  // One by one: Open MPI 4.1's MPI_Waitall spins for ever when a request has already failed.
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    MPI_Status status;
    check(MPI_Wait(&requests_[i], &status));
    if (expected_[i].count < 0) continue;
    int received = 0;
    check(MPI_Get_count(&status, expected_[i].type, &received));
    if (received != expected_[i].count) {
      fail_one(ExitCode::error, std::string(operation_name(key_.operation)) + " in group '" + key_.group +
                                    "' on rank " + std::to_string(rank_) + ": " + std::to_string(received) +
                                    " elements came from rank " + std::to_string(status.MPI_SOURCE) + ", " +
                                    std::to_string(expected_[i].count) + " were expected");
    }
  }
  requests_.clear();
  expected_.clear();
}

}  // namespace fourfold
