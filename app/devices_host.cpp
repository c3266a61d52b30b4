#include "devices.hpp"

namespace fourfold {

Devices::Devices(const Communicator& /*world*/) {}

std::unique_ptr<Kokkos::ScopeGuard> Devices::start_kokkos() const {
  return std::make_unique<Kokkos::ScopeGuard>();
}

std::shared_ptr<void> Devices::attach(const Launch& launch, Pool& pool) const {
  launch.set_scratch_allocator([&pool](std::int64_t bytes) { return pool.take(MemoryTag::buffers, bytes); });
  return {&pool, [&launch](void*) { launch.set_scratch_allocator({}); }};
}

RegionHooks Devices::region_hooks() {
  return {[](const std::string& region) { Kokkos::Profiling::pushRegion(region); },
          [] { Kokkos::Profiling::popRegion(); }};
}

}  // namespace fourfold
