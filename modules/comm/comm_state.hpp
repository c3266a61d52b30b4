// What the communicators of one launch share. Owned by Launch.
#pragma once

#include <cstdint>
#include <memory>

#include "base/trace.hpp"
#include "comm/channels.hpp"
#include "comm/device.hpp"
#include "comm/ledger.hpp"
#include "comm/scratch.hpp"
#include "comm/virtual_clock.hpp"

namespace fourfold {

struct CommState {
  CommLedger ledger;
  VirtualClock clock;
  Channels channels{clock};
  ScratchPool scratch;             // of the host's memory
  std::shared_ptr<Device> device;  // null: the host reads every buffer
  ScratchPool device_scratch;
  bool mpi_moves_device_memory = false;  // its messages; seen to do so
  Trace no_trace;
  Trace* trace = &no_trace;
  // Largest number of bytes given to one MPI call, whose counts are 32-bit. Tests lower it.
  std::int64_t transfer_limit = std::int64_t{1} << 30;
};

}  // namespace fourfold
