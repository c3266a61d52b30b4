// What the communicators of one launch share. Owned by Launch.
#pragma once

#include <cstdint>

#include "base/trace.hpp"
#include "comm/channels.hpp"
#include "comm/ledger.hpp"
#include "comm/scratch.hpp"
#include "comm/virtual_clock.hpp"

namespace fourfold {

struct CommState {
  CommLedger ledger;
  VirtualClock clock;
  Channels channels{clock};
  ScratchPool scratch;
  Trace no_trace;
  Trace* trace = &no_trace;
  // Largest number of bytes given to one MPI call, whose counts are 32-bit. Tests lower it.
  std::int64_t transfer_limit = std::int64_t{1} << 30;
};

}  // namespace fourfold
