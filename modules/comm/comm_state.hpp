// What the communicators of one launch share. Owned by Launch.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/trace.hpp"
#include "comm/channels.hpp"
#include "comm/device.hpp"
#include "comm/ledger.hpp"
#include "comm/scratch.hpp"
#include "comm/shared_memory.hpp"
#include "comm/virtual_clock.hpp"

namespace fourfold {

class CallRing;         // comm/call_ring.hpp
class SharedOperation;  // comm/shared_group.hpp

struct CommState {
  CommLedger ledger;
  VirtualClock clock;
  Channels channels{clock};
  ScratchPool scratch;             // of the host's memory
  std::shared_ptr<Device> device;  // null: the host reads every buffer
  ScratchPool device_scratch;
  bool mpi_moves_device_memory = false;         // its messages; seen to do so
  std::shared_ptr<SharedMemory> shared_memory;  // null: the ranks of a node do not read each other's
  std::int64_t share_from = 1024;               // bytes of the smallest operation that goes through it
  int real_node = 0;                            // not that of a machine file
  std::vector<SharedMemory::Block> free_slots;  // of groups that are gone
  std::int64_t next_shared = 1;                 // above all numbers in these
  std::vector<std::shared_ptr<SharedOperation>> under_way;
  CallRing* ring = nullptr;  // where every operation leaves its place; null: nowhere
  bool check_calls = false;  // members compare what they are about to do
  Trace no_trace;
  Trace* trace = &no_trace;
  // Largest number of bytes given to one MPI call, whose counts are 32-bit. Tests lower it.
  std::int64_t transfer_limit = std::int64_t{1} << 30;
};

}  // namespace fourfold
