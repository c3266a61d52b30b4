// The operations of a group of ranks: right numbers, and what they cost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/grid_comms.hpp"
#include "comm/launch.hpp"
#include "selftest/report.hpp"

namespace fourfold::selftest {

// Memory for the operations' buffers: the host's, or what ranks of a node share.
using TakeMemory = std::function<std::shared_ptr<std::byte>(std::int64_t bytes)>;

// Every operation of collectives.hpp on buffers of about `elements` elements, against numbers that are exact in any
// order of additions. The first that is wrong: "all_reduce_sum (fast): element 3 is 5, not 7"; empty where none is.
// Collective.
std::string wrong_operation(const Communicator& group, std::int64_t elements, const TakeMemory& take);

// Seconds of an all_reduce of 8 bytes, and bytes/s that a rank sends on a ring, of operations on `bytes` bytes; each
// the slowest rank's. Collective; takes about `seconds`.
struct Rates {
  double latency = 0;
  double all_reduce = 0, all_gather = 0, reduce_scatter = 0, all_to_all = 0;
};
Rates measure(const Communicator& group, std::int64_t bytes, double seconds, const TakeMemory& take);

// A line for all ranks and for each axis of the grid, with the slowest group's figures where there are several.
// `title`: "by messages". Collective.
void look_at_axes(const Launch& launch, const GridComms& comms, const std::vector<GroupKey>& axes,
                  const std::string& title, const TakeMemory& take, Report& report);

}  // namespace fourfold::selftest
