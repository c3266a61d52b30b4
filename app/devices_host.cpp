#include <stdexcept>
#include <string>

#include "base/error.hpp"
#include "base/log.hpp"
#include "devices.hpp"

namespace fourfold {

Devices::Devices(const Communicator& /*world*/) {}

std::unique_ptr<Kokkos::ScopeGuard> Devices::start_kokkos() const {
  return std::make_unique<Kokkos::ScopeGuard>();
}

std::shared_ptr<void> Devices::attach(const Launch& launch, Pool& pool, SharedMemoryUse shared) const {
  if (shared != SharedMemoryUse::off) {
    const std::string problem = launch.share_memory();
    if (!problem.empty() && shared == SharedMemoryUse::on) {
      fail_all(ExitCode::launch, "comm.shared_memory: on, but the ranks of a node cannot read each other's memory (" +
                                     problem + "); auto goes without");
    }
    if (!problem.empty()) {
      log_warn("the ranks of a node cannot read each other's memory (" + problem +
               "): collectives go through MPI, and are slower");
    }
    if (const auto& memory = launch.shared_memory(); memory != nullptr) {
      // A block elsewhere would not do: the others of the node reach for this rank's blocks in shared memory.
      pool.set_source([memory](std::int64_t bytes) {
        auto block = memory->take(bytes);
        if (block == nullptr) {
          throw std::runtime_error(memory->refusal() + "; without memory that ranks share: comm.shared_memory=off");
        }
        return block;
      });
    }
  }
  launch.set_scratch_allocator([&pool](std::int64_t bytes) { return pool.take(MemoryTag::buffers, bytes); });
  return {&pool, [&launch](void*) { launch.set_scratch_allocator({}); }};
}

RegionHooks Devices::region_hooks() {
  return {[](const std::string& region) { Kokkos::Profiling::pushRegion(region); },
          [] { Kokkos::Profiling::popRegion(); }};
}

}  // namespace fourfold
