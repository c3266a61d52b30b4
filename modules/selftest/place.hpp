// Where the ranks are: launcher, hosts, MPI, cores. All collective; findings are rank 0's.
#pragma once

#include "comm/launch.hpp"
#include "selftest/report.hpp"

namespace fourfold::selftest {

// "ranks", "launcher", "MPI".
void look_at_launch(const Launch& launch, Report& report);
// "cores": masks, and whether ranks of `threads` threads have cores of their own.
void look_at_cores(const Launch& launch, int threads, Report& report);

}  // namespace fourfold::selftest
