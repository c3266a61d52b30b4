#include "comm/communicator.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.hpp"
#include "comm/agree.hpp"
#include "comm/call_ring.hpp"
#include "comm/comm_state.hpp"
#include "comm/device.hpp"
#include "comm/mpi_check.hpp"
#include "comm/mpi_handle.hpp"
#include "comm/shared_group.hpp"

namespace fourfold {

std::string mpi_error_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = "unknown MPI error";
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) return "MPI error " + std::to_string(code);
  return std::string(text, static_cast<std::size_t>(length));
}

void check_mpi(int code, const char* operation, const std::string& group, int rank, int size) {
  if (code == MPI_SUCCESS) return;
  fail_one(ExitCode::error, std::string(operation) + " failed in group '" + group + "' on rank " +
                                std::to_string(rank) + " of its " + std::to_string(size) + ": " + mpi_error_text(code));
}

MpiHandle::MpiHandle(MPI_Comm communicator, Ownership owner) : comm(communicator), ownership(owner) {
  FOURFOLD_ASSERT(comm != MPI_COMM_NULL, "a communicator must have members, this rank among them");
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
}

MpiHandle::~MpiHandle() {
  if (ownership == Ownership::borrowed || std::uncaught_exceptions() > 0) return;
  int ended = 0;
  MPI_Finalized(&ended);
  if (ended == 0) MPI_Comm_free(&comm);
}

namespace {

std::shared_ptr<const MpiHandle> make_handle(const Communicator& parent, const std::vector<int>& ranks,
                                             const std::string& name) {
  FOURFOLD_ASSERT(std::find(ranks.begin(), ranks.end(), parent.rank()) != ranks.end(),
                  "group '" + name + "' must hold the rank that makes it");
  if (ranks.size() == 1) return std::make_shared<MpiHandle>(MPI_COMM_SELF, MpiHandle::Ownership::borrowed);
  const auto check = [&](int code, const char* what) { check_mpi(code, what, name, parent.rank(), parent.size()); };
  MPI_Group all = MPI_GROUP_NULL;
  MPI_Group some = MPI_GROUP_NULL;
  MPI_Comm comm = MPI_COMM_NULL;
  check(MPI_Comm_group(parent.handle().comm, &all), "MPI_Comm_group");
  check(MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &some), "MPI_Group_incl");
  check(MPI_Comm_create_group(parent.handle().comm, some, 0, &comm), "MPI_Comm_create_group");
  check(MPI_Group_free(&some), "MPI_Group_free");
  check(MPI_Group_free(&all), "MPI_Group_free");
  return std::make_shared<MpiHandle>(comm, MpiHandle::Ownership::owned);
}

std::vector<int> nodes_of(const Communicator& parent, const std::vector<int>& ranks) {
  std::vector<int> nodes;
  nodes.reserve(ranks.size());
  for (const int rank : ranks) nodes.push_back(parent.node_of(rank));
  return nodes;
}

std::vector<int> world_ranks_of(const Communicator& parent, const std::vector<int>& ranks) {
  std::vector<int> members;
  members.reserve(ranks.size());
  for (const int rank : ranks) members.push_back(parent.world_rank_of(rank));
  return members;
}

std::uint64_t id_of(const std::string& name, const std::vector<int>& members) {
  return hash_bytes(name) * 31 +
         hash_bytes({reinterpret_cast<const char*>(members.data()), members.size() * sizeof(int)});
}

}  // namespace

// Not moved on: the handle is made with the name too, and arguments are evaluated in any order.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
Communicator::Communicator(const Communicator& parent, const std::vector<int>& ranks, std::string name)
    : Communicator(make_handle(parent, ranks, name), name, nodes_of(parent, ranks), world_ranks_of(parent, ranks),
                   parent.state_) {
  make_device_group();
  make_shared_group();
}

Communicator::Communicator(std::shared_ptr<const MpiHandle> handle, std::string name, std::vector<int> nodes,
                           std::vector<int> world_ranks, CommState* state)
    : handle_(std::move(handle)),
      name_(std::move(name)),
      world_ranks_(std::move(world_ranks)),
      id_(id_of(name_, world_ranks_)),
      state_(state) {
  check_mpi(MPI_Comm_rank(handle_->comm, &rank_), "MPI_Comm_rank", name_, -1, -1);
  check_mpi(MPI_Comm_size(handle_->comm, &size_), "MPI_Comm_size", name_, -1, -1);
  set_nodes(std::move(nodes));
  if (state_->ring != nullptr) state_->ring->join(id_, name_, size_);
}

// For the launch's device; collective over the members.
void Communicator::make_device_group() {
  device_.reset();
  if (state_->device == nullptr || size_ == 1) return;
  device_ = state_->device->make_group(rank_, size_, name_, [&](void* data, std::int64_t bytes) {
    check_mpi(MPI_Bcast(data, static_cast<int>(bytes), MPI_BYTE, 0, handle_->comm), "MPI_Bcast", name_, rank_, size_);
  });
}

// Where the launch shares memory; collective over the members.
void Communicator::make_shared_group() {
  shared_.reset();  // not known while the members tell each other
  shared_ = SharedGroup::make(*this, *state_);
}

void Communicator::set_nodes(std::vector<int> nodes) {
  nodes_ = std::move(nodes);
  between_nodes_ = std::any_of(nodes_.begin(), nodes_.end(), [&](int node) { return node != nodes_.front(); });
}

// Written by hand so that a communicator moved from is seen to be empty.
Communicator::Communicator(Communicator&& other) noexcept
    : handle_(std::move(other.handle_)),
      device_(std::move(other.device_)),
      shared_(std::move(other.shared_)),
      rank_(std::exchange(other.rank_, 0)),
      size_(std::exchange(other.size_, 0)),
      name_(std::move(other.name_)),
      nodes_(std::move(other.nodes_)),
      world_ranks_(std::move(other.world_ranks_)),
      id_(std::exchange(other.id_, 0)),
      between_nodes_(std::exchange(other.between_nodes_, false)),
      state_(std::exchange(other.state_, nullptr)) {}

Communicator& Communicator::operator=(Communicator&& other) noexcept {
  if (this != &other) {
    device_ = std::move(other.device_);
    shared_ = std::move(other.shared_);
    handle_ = std::move(other.handle_);
    rank_ = std::exchange(other.rank_, 0);
    size_ = std::exchange(other.size_, 0);
    name_ = std::move(other.name_);
    nodes_ = std::move(other.nodes_);
    world_ranks_ = std::move(other.world_ranks_);
    id_ = std::exchange(other.id_, 0);
    between_nodes_ = std::exchange(other.between_nodes_, false);
    state_ = std::exchange(other.state_, nullptr);
  }
  return *this;
}

Communicator::~Communicator() = default;

CommLedger& Communicator::ledger() const {
  return state_->ledger;
}

VirtualClock& Communicator::clock() const {
  return state_->clock;
}

Trace& Communicator::trace() const {
  return *state_->trace;
}

void Communicator::set_trace(Trace* trace) const {
  state_->trace = trace != nullptr ? trace : &state_->no_trace;
}

Communicator Communicator::alias(std::string name) const {
  Communicator other(handle_, std::move(name), nodes_, world_ranks_, state_);
  other.device_ = device_;
  other.shared_ = shared_;
  return other;
}

}  // namespace fourfold
