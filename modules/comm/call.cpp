#include "comm/call.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "comm/call_ring.hpp"
#include "comm/comm_state.hpp"
#include "comm/mpi_check.hpp"

namespace fourfold {

Call::Call(const Communicator& group, Operation operation, const CallSite& site, int peer)
    : handle_(group.handle_),
      device_(group.device_),
      state_(group.state_),
      key_{operation, group.name(), site.phase},
      rank_(group.rank()),
      size_(group.size()),
      peer_(peer),
      between_nodes_(peer < 0 ? group.between_nodes() : group.node_of(peer) != group.node_of(rank_)),
      site_(site),
      group_id_(group.id_),
      world_ranks_(group.world_ranks_),
      peer_in_world_(peer < 0 ? -1 : group.world_rank_of(peer)),
      start_ns_(state_->trace->on() ? now_ns() : 0) {}

CommLedger& Call::ledger() const {
  return state_->ledger;
}

ScratchPool::Lease Call::scratch(std::int64_t bytes) const {
  return state_->scratch.take(bytes);
}

ScratchPool::Lease Call::device_scratch(std::int64_t bytes) const {
  return state_->device_scratch.take(bytes);
}

DeviceGroup* Call::device(const void* data) const {
  return device_ != nullptr && state_->device != nullptr && state_->device->holds(data) ? device_.get() : nullptr;
}

void Call::queued() {
  queued_ = device_->mark();
}

bool Call::on_device(const Communicator& group, const void* data) {
  return group.state_->device != nullptr && group.state_->device->holds(data);
}

bool Call::needs_staging(const Communicator& group, const void* data) {
  return group.device_ == nullptr && on_device(group, data);
}

bool Call::message_needs_staging(const Communicator& group, const void* data) {
  return !group.state_->mpi_moves_device_memory && on_device(group, data);
}

// A group of emulated nodes is one between nodes, wherever its ranks are.
std::shared_ptr<SharedGroup> Call::shared_group(const Communicator& group, const void* data, std::int64_t bytes) {
  const bool shared = group.shared_ != nullptr && !group.between_nodes() && bytes >= group.state_->share_from &&
                      !on_device(group, data);
  return shared ? group.shared_ : nullptr;
}

std::shared_ptr<Device> Call::device_of(const Communicator& group) {
  return group.state_->device;
}

ScratchPool::Lease Call::host_scratch(const Communicator& group, std::int64_t bytes) {
  return group.state_->scratch.take(bytes);
}

ScratchPool::Lease Call::scratch_beside(const Communicator& group, const void* data, std::int64_t bytes) {
  return on_device(group, data) ? group.state_->device_scratch.take(bytes) : group.state_->scratch.take(bytes);
}

void Call::copy_bytes(const Communicator& group, const void* from, void* to, std::int64_t bytes) {
  if (on_device(group, from) || on_device(group, to)) {
    group.state_->device->copy(from, to, bytes);
  } else {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
}

std::shared_ptr<VirtualOperation> Call::virtual_operation(VirtualOperation::Kind kind) const {
  auto operation = std::make_shared<VirtualOperation>();
  operation->kind = kind;
  operation->link = between_nodes_ ? LinkClass::between : LinkClass::inside;
  operation->group = handle_;
  operation->rank = rank_;
  operation->size = size_;
  return operation;
}

void Call::exposed(double seconds) const {
  state_->ledger.add_seconds(key_, seconds);
  if (state_->trace->on()) trace(now_ns() - static_cast<std::int64_t>(seconds * 1e9), false);
}

void Call::trace(std::int64_t start_ns, bool in_flight) const {
  TraceEvent event;
  event.name = operation_name(key_.operation);
  event.category = phase_name(key_.phase);
  event.start_ns = start_ns;
  event.end_ns = now_ns();
  event.bytes = sent_bytes_;
  event.track = key_.group;
  event.in_flight = in_flight;
  state_->trace->record(std::move(event));
}

void Call::note(std::int64_t elements, std::int64_t element_size) {
  if (state_->ring == nullptr) return;
  ticket_ = state_->ring->begin(
      {group_id_, key_.group, size_, key_.operation, elements, element_size, site_, peer_in_world_});
  waits(true);
}

void Call::waits(bool begins) const {
  if (state_->ring != nullptr) state_->ring->wait_for(begins ? ticket_ : 0);
}

void Call::record(const Given& given) {
  note(given.elements, given.element_size);
  if (state_->check_calls) compare_with_members(given.elements, given.element_size);
  sent_bytes_ = given.ring_elements * given.element_size;
  state_->ledger.record(key_, given.elements, given.element_size, given.ring_elements, given.messages, between_nodes_);
  if (!state_->clock.counts(key_.phase)) return;
  virtual_ = virtual_operation(VirtualOperation::Kind::collective);
  virtual_->bytes = given.largest * given.element_size;
  virtual_->steps = key_.operation == Operation::all_reduce ? 2 * (size_ - 1) : size_ - 1;
  state_->channels.post(virtual_);
}

void Call::record_message(std::int64_t elements, std::int64_t element_size, int tag) {
  note(elements, element_size);
  const bool sends = key_.operation == Operation::send;
  const std::int64_t sent = sends ? elements : 0;
  sent_bytes_ = sent * element_size;
  state_->ledger.record(key_, elements, element_size, sent, sends ? 1 : 0, between_nodes_);
  if (!state_->clock.counts(key_.phase)) return;
  virtual_ = virtual_operation(sends ? VirtualOperation::Kind::send : VirtualOperation::Kind::receive);
  virtual_->peer = peer_;
  virtual_->tag = tag;
  virtual_->bytes = sent * element_size;
  state_->channels.post(virtual_);
}

std::int64_t Call::chunk(std::int64_t element_size, std::int64_t multiple) const {
  const std::int64_t most = state_->transfer_limit / element_size;
  return std::max(most / multiple, std::int64_t{1}) * multiple;
}

void Call::check(int code) const {
  check_mpi(code, operation_name(key_.operation).data(), key_.group, rank_, size_);
}

// While it waits, this rank works on what others wait for in shared memory; with a virtual clock its notices go out.
void Call::complete(MPI_Request& request, MPI_Status& status) const {
  int done = 0;
  while (state_->clock.emulates() || advance_shared(*state_)) {
    check(MPI_Test(&request, &done, &status));
    if (done != 0) return;
    if (state_->clock.emulates()) {
      advance_shared(*state_);
      state_->channels.progress();
    }
    sched_yield();
  }
  check(MPI_Wait(&request, &status));
}

void Call::finish() {
  wait();
  if (state_->ring != nullptr) state_->ring->end(ticket_);
  if (state_->trace->on()) trace(start_ns_, true);
  if (virtual_ == nullptr) return;
  state_->ledger.add_virtual(key_, state_->channels.wait(*virtual_));
  virtual_.reset();
}

void Call::finish_shared() {
  state_->ledger.add_shared(key_, sent_bytes_);
  finish();
}

// With a virtual clock this rank's notices go out while it waits.
void Call::wait_for_device() {
  while (queued_ != nullptr && !device_->reached(queued_)) {
    if (state_->clock.emulates()) state_->channels.progress();
    sched_yield();
  }
  queued_.reset();
}

void Call::wait() {
  wait_for_device();
  // One by one: Open MPI 4.1's MPI_Waitall spins for ever when a request has already failed.
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    MPI_Status status;
    complete(requests_[i], status);
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
