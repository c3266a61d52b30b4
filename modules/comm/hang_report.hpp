// Who holds up a run that hangs, from what each rank left in its ring of calls. Arithmetic on snapshots.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/call_ring.hpp"

namespace fourfold {

struct HangReport {
  std::int64_t rank = -1;  // the one to look at first; -1: there is no ring
  std::string reason;      // "did not come to all_reduce number 812 of group 'data', ..."
  std::string details;     // a line a group in which some wait: who came to which operation, who did not
};

// In this order:
//   a group whose members do not mean the same by one number (operation, counts, type): the minority
//   who is waited for, by others or along a chain of them, and waits for nobody
//   where they wait for each other in a ring: who has not come to an operation, and waits in one to which all have
//   come; else who is the furthest ahead, since it went past what the others wait for
HangReport find_hang(const std::vector<RingSnapshot>& ranks);

// "0, 2-5, 9"
std::string rank_list(std::vector<std::int64_t> ranks);

}  // namespace fourfold
