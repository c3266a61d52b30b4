// Whether ranks have cores of their own, or are piled on a few that the launcher bound them to.
#pragma once

#include <string>
#include <vector>

#include "comm/launch.hpp"

namespace fourfold {

struct CpuPlace {
  std::string host;
  std::vector<int> cores;  // that the process may run on
  int offered = 1;         // that its host, or the job's part of it, has
  int threads = 1;         // that compute
};

// Ranks of a host which are bound to the same few of its cores although each wants `threads` of its own: what is wrong
// and what to type. Empty where there is none. Ranks that are not bound may be more than the cores: that is meant.
std::string shared_cores(const std::vector<CpuPlace>& places);

// This process's, now.
CpuPlace cpu_place(const std::string& host, int threads);

// Collective. The places of all ranks, in rank order, on rank 0; nothing on the others.
std::vector<CpuPlace> gather_places(const Communicator& world, const CpuPlace& mine);

// FOURFOLD_SHARE_CORES=1 in the environment.
bool sharing_cores_is_meant();

// Collective. Errors: Error of all ranks (launch). FOURFOLD_SHARE_CORES=1 in the environment: sharing is meant.
void check_cores(const Launch& launch, int threads);

}  // namespace fourfold
