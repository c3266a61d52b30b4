// Operations in which the ranks of a group read and write each other's buffers. Included by this module's sources only.
//
// Each member has a row of slots in shared memory, which it alone writes. An operation is a number, the same on all
// members, and uses the slot of that number:
//
//   start   the member says in its slot where its buffer lies, then `posted`
//   work    once all have posted: its share of the operation, on everybody's buffers; then `done`
//   end     once all are done: from here on the buffers are the member's own again
//
// Whoever waits, here or for MPI, works on all operations under way that it can work on, in the order in which they
// were started, and gives MPI and the virtual clock their turn. Operations on buffers in no shared memory, of all
// members, take a number too and go another way; a member that goes another way than the others is an error of theirs.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/mpi_handle.hpp"
#include "comm/shared_memory.hpp"

namespace fourfold {

class Communicator;
struct CommState;

struct alignas(64) SharedSlot {
  std::atomic<std::int64_t> posted{0}, done{0};  // the number of the last operation of which this is so
  SharedMemory::Place buffer;
  std::int64_t bytes = 0;
};
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

class SharedGroup;

class SharedOperation {
 public:
  // Gets each member's buffer.
  using Work = std::function<void(const std::vector<std::byte*>& buffers)>;

  // Goes on as far as it can without waiting; whether it has ended. Errors: Error (one rank) where a member gave a
  // buffer of another size or in no shared memory, or one that cannot be mapped.
  bool advance();

 private:
  friend class SharedGroup;
  std::vector<std::byte*> buffers() const;

  std::shared_ptr<const SharedGroup> group_;
  std::int64_t number_ = 0;
  Work work_;
  bool done_ = false, ended_ = false;
};

class SharedGroup : public std::enable_shared_from_this<SharedGroup> {
 public:
  // Collective over `group`. Null where its members are not on one node, or the launch shares no memory.
  static std::shared_ptr<SharedGroup> make(const Communicator& group, CommState& state);
  SharedGroup() = default;
  ~SharedGroup();
  SharedGroup(const SharedGroup&) = delete;
  SharedGroup& operator=(const SharedGroup&) = delete;

  // All members start the same operations in one order. Null where `buffer` lies in no shared memory: it goes another
  // way.
  std::shared_ptr<SharedOperation> start(const void* buffer, std::int64_t bytes, SharedOperation::Work work);
  // Until it has ended.
  void wait(SharedOperation& operation) const;

 private:
  friend class SharedOperation;
  static constexpr std::int64_t kSlots = 64;
  SharedSlot& slot(std::size_t member, std::int64_t number) const { return slots_[member][number % kSlots]; }

  CommState* state_ = nullptr;
  std::shared_ptr<const MpiHandle> handle_;
  std::string name_;
  std::size_t rank_ = 0;
  std::vector<SharedSlot*> slots_;  // of each member
  SharedMemory::Block own_;
  std::int64_t next_ = 1;                               // the number of the next operation
  std::vector<std::shared_ptr<SharedOperation>> last_;  // of each slot
};

// Works on all operations under way; whether some are left.
bool advance_shared(CommState& state);

}  // namespace fourfold
