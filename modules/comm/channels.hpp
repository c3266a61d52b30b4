// The channels of the virtual clock: when operations start and end. Ranks tell each other when they posted what by
// small messages on the operation's own communicator, beside the ledger. Included by this module's sources only.
//
// Nothing here blocks until an end is asked for: what this rank has to say about an operation it says as soon as its
// earlier ones on the same channel have ended (progress()), so that no program that ends without the clock waits for
// ever with it.
#pragma once

#include <mpi.h>

#include <array>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <vector>

#include "comm/mpi_handle.hpp"
#include "comm/virtual_clock.hpp"

namespace fourfold {

// One operation under way on the virtual machine.
struct VirtualOperation {
  enum class Kind { collective, send, receive };
  Kind kind = Kind::collective;
  LinkClass link = LinkClass::inside;
  std::shared_ptr<const MpiHandle> group;
  int rank = 0, size = 1;  // in the group
  int peer = -1, tag = 0;  // of a message
  std::int64_t bytes = 0;  // of a collective: ring-equivalent, of the largest part
  std::int64_t steps = 0;  // messages of a collective that follow one another
  Picoseconds posted = 0;

  struct Notice {
    Picoseconds ready;
    std::int64_t bytes;
  };
  bool told = false;          // the others know when this rank is ready
  Notice mine{}, stamp{};     // what they are told; what a receiver is told
  std::vector<Notice> heard;  // from the others
  std::vector<MPI_Request> requests;
  Picoseconds end = -1;  // below zero: not known yet
};

class Channels {
 public:
  explicit Channels(VirtualClock& clock) : clock_(clock) {}

  // `operation` without what the clock fills in: posted and all that follows it.
  void post(const std::shared_ptr<VirtualOperation>& operation);
  // Until the operation's end is known; the clock then stands there at the earliest. Returns the time waited.
  Picoseconds wait(VirtualOperation& operation);
  // All channels free at time zero; nothing may be under way.
  void reset();
  // Whatever can go on without waiting.
  void progress();

 private:
  struct Channel {
    std::deque<std::shared_ptr<VirtualOperation>> posted;  // in order; the first may be under way
    Picoseconds free = 0;
  };
  void tell(VirtualOperation& operation, Picoseconds ready) const;
  bool heard_all(VirtualOperation& operation) const;
  void check(int code, const VirtualOperation& operation) const;

  VirtualClock& clock_;
  std::array<Channel, kLinkClasses> channels_;
  std::list<std::shared_ptr<VirtualOperation>> sent_;  // messages whose notice is on its way
};

}  // namespace fourfold
