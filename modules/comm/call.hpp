// One collective or message under way: who asked, its MPI requests, and its entry in the ledger. Included by this
// module's sources only.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/timer.hpp"
#include "comm/channels.hpp"
#include "comm/collectives.hpp"
#include "comm/device.hpp"
#include "comm/ledger.hpp"
#include "comm/mpi_handle.hpp"
#include "comm/scratch.hpp"
#include "comm/shared_group.hpp"

namespace fourfold {

template <class T>
MPI_Datatype mpi_type();
template <>
inline MPI_Datatype mpi_type<float>() {
  return MPI_FLOAT;
}
template <>
inline MPI_Datatype mpi_type<double>() {
  return MPI_DOUBLE;
}
template <>
inline MPI_Datatype mpi_type<std::int32_t>() {
  return MPI_INT32_T;
}
template <>
inline MPI_Datatype mpi_type<std::int64_t>() {
  return MPI_INT64_T;
}
template <>
inline MPI_Datatype mpi_type<std::uint16_t>() {
  return MPI_UINT16_T;
}
template <>
inline MPI_Datatype mpi_type<std::byte>() {
  return MPI_BYTE;
}

class Call {
 public:
  // Adds the time of its life to the call's exposed seconds, and to the trace; meanwhile this rank waits for the call.
  class Timed {
   public:
    explicit Timed(Call& call) : call_(call) { call_.waits(true); }
    ~Timed() {
      call_.waits(false);
      call_.exposed(watch_.seconds());
    }
    Timed(const Timed&) = delete;
    Timed& operator=(const Timed&) = delete;

   private:
    Call& call_;
    Stopwatch watch_;
  };

  // `peer`: the other rank of a message.
  Call(const Communicator& group, Operation operation, const CallSite& site, int peer = -1);

  MPI_Comm comm() const { return handle_->comm; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  CommLedger& ledger() const;
  ScratchPool::Lease scratch(std::int64_t bytes) const;         // in the host's memory
  ScratchPool::Lease device_scratch(std::int64_t bytes) const;  // in the device's

  // What queues this call's operations if `data` is a device's; null: MPI does them. What is queued belongs to the call
  // once queued() was called.
  DeviceGroup* device(const void* data) const;
  void queued();

  // Whether the launch's device holds it.
  static bool on_device(const Communicator& group, const void* data);
  // Whether a collective has to go over copies in the host's memory (staging.hpp): `data` is a device's and the group
  // has no DeviceGroup. The same for a message, which MPI may be able to move as it is.
  static bool needs_staging(const Communicator& group, const void* data);
  static bool message_needs_staging(const Communicator& group, const void* data);
  // The group whose ranks read each other's buffers for an operation on `bytes` bytes; null where it goes through MPI.
  static std::shared_ptr<SharedGroup> shared_group(const Communicator& group, const void* data, std::int64_t bytes);
  static std::shared_ptr<Device> device_of(const Communicator& group);
  // In the memory that `data` is in.
  static ScratchPool::Lease scratch_beside(const Communicator& group, const void* data, std::int64_t bytes);
  static ScratchPool::Lease host_scratch(const Communicator& group, std::int64_t bytes);
  // From and to whichever memory.
  template <class T>
  static void copy(const Communicator& group, const T* from, T* to, std::int64_t count) {
    if (count > 0) copy_bytes(group, from, to, count * static_cast<std::int64_t>(sizeof(T)));
  }

  // A collective, in the ledger, the ring of calls and on the virtual clock; compared with the other members' where the
  // launch checks calls. Errors: Error (one rank) where they differ.
  struct Given {
    std::int64_t elements, element_size, ring_elements;
    std::int64_t largest;   // ring_elements if all parts were as large as the largest one
    std::int64_t messages;  // sent by this rank
  };
  void record(const Given& given);
  // A send or receive.
  void record_message(std::int64_t elements, std::int64_t element_size, int tag);

  // The largest count of elements for one MPI call, a multiple of `multiple` (and at least that).
  std::int64_t chunk(std::int64_t element_size, std::int64_t multiple) const;

  // `start(MPI_Request*)` starts an MPI operation and returns its code.
  template <class Start>
  void post(Start&& start) {
    expected_.push_back({-1, MPI_BYTE});
    check(start(&requests_.emplace_back(MPI_REQUEST_NULL)));
  }

  // Messages are cut at the limit; an empty one is still a message. `start`: MPI_Isend or MPI_Issend.
  template <class T>
  void send(std::span<const T> data, int to, int tag, decltype(&MPI_Isend) start = MPI_Isend) {
    cut<T>(data.size(), [&](std::size_t begin, std::size_t count) {
      post([&](MPI_Request* request) {
        return start(data.data() + begin, static_cast<int>(count), mpi_type<T>(), to, tag, comm(), request);
      });
    });
  }
  template <class T>
  void receive(std::span<T> data, int from, int tag) {
    cut<T>(data.size(), [&](std::size_t begin, std::size_t count) {
      post([&](MPI_Request* request) {
        return MPI_Irecv(data.data() + begin, static_cast<int>(count), mpi_type<T>(), from, tag, comm(), request);
      });
      expected_.back() = {static_cast<int>(count), mpi_type<T>()};
    });
  }

  // Completes every request posted so far. Errors: Error (one rank), also when a message is shorter than its buffer.
  void wait();
  // The end of the operation: wait(), then the clock moves to the virtual end.
  void finish();
  // The same for one that ranks worked on in each other's memory.
  void finish_shared();
  void check(int code) const;

 private:
  struct Expected {
    int count;  // -1 where the request is not a receive
    MPI_Datatype type;
  };

  template <class T, class Piece>
  void cut(std::size_t count, Piece&& piece) {
    const auto most = static_cast<std::size_t>(chunk(sizeof(T), 1));
    std::size_t begin = 0;
    do {
      const std::size_t now = count - begin < most ? count - begin : most;
      piece(begin, now);
      begin += now;
    } while (begin < count);
  }

  static void copy_bytes(const Communicator& group, const void* from, void* to, std::int64_t bytes);
  void complete(MPI_Request& request, MPI_Status& status) const;
  void wait_for_device();
  // Here is where the call begins, in the ring.
  void note(std::int64_t elements, std::int64_t element_size);
  void waits(bool begins) const;
  void compare_with_members(std::int64_t elements, std::int64_t element_size);
  void exposed(double seconds) const;
  void trace(std::int64_t start_ns, bool in_flight) const;
  std::shared_ptr<VirtualOperation> virtual_operation(VirtualOperation::Kind kind) const;

  std::shared_ptr<const MpiHandle> handle_;
  std::shared_ptr<DeviceGroup> device_;  // the group's
  std::shared_ptr<void> queued_;         // the moment at which this call's operations on the device are complete
  CommState* state_;
  CommKey key_;
  int rank_, size_, peer_;
  bool between_nodes_;
  CallSite site_;
  std::uint64_t group_id_;
  const std::vector<int>& world_ranks_;
  int peer_in_world_;
  std::int64_t ticket_ = 0;    // in the ring of calls
  std::int64_t start_ns_ = 0;  // where there is a trace
  std::int64_t sent_bytes_ = 0;
  std::shared_ptr<VirtualOperation> virtual_;  // where the clock counts this call
  std::vector<MPI_Request> requests_;
  std::vector<Expected> expected_;
};

// Ends an operation that its group works on in shared memory.
inline Pending ends(std::shared_ptr<Call> call, std::shared_ptr<SharedGroup> group,
                    std::shared_ptr<SharedOperation> operation) {
  return Pending([call = std::move(call), group = std::move(group), operation = std::move(operation)] {
    const Call::Timed waiting(*call);
    group->wait(*operation);
    call->finish_shared();
  });
}

// Tags of this module's own messages, above those of start_send (< 2^15). Each of those has one for the notice of the
// virtual clock.
inline constexpr int kTagLimit = 1 << 15;
inline constexpr int kTagReduceScatter = kTagLimit;
inline constexpr int kTagAllToAll = kTagLimit + 1;
inline constexpr int kTagPosted = kTagLimit + 2;
inline constexpr int kTagNotice = 2 * kTagLimit;
inline constexpr int kTagEnd = 3 * kTagLimit;

// Operations that were destroyed unfinished while an exception was on its way: MPI may still write into freed buffers,
// so the abort path ends the job without another look at MPI.
bool operations_abandoned();

}  // namespace fourfold
