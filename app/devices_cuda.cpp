#include <nvtx3/nvToolsExt.h>

#include <cstdlib>
#include <string>

#include "base/error.hpp"
#include "base/log.hpp"
#include "comm/cuda_device.hpp"
#include "comm/device_choice.hpp"
#include "devices.hpp"

namespace fourfold {

namespace {

void push_region(const std::string& region) {
  nvtxRangePushA(region.c_str());
  Kokkos::Profiling::pushRegion(region);
}

void pop_region() {
  Kokkos::Profiling::popRegion();
  nvtxRangePop();
}

}  // namespace

Devices::Devices(const Communicator& world) {
  const char* share = std::getenv("FOURFOLD_SHARE_GPUS");
  const DeviceQuery query{cuda_devices, cuda_device_id, share != nullptr && std::string(share) == "1"};
  const AgreedDevice agreed = agree_on_device(world, query);
  device_ = agreed.device;
  shared_ = agreed.shared;
}

std::unique_ptr<Kokkos::ScopeGuard> Devices::start_kokkos() const {
  return std::make_unique<Kokkos::ScopeGuard>(Kokkos::InitializationSettings().set_device_id(device_));
}

std::shared_ptr<void> Devices::attach(const Launch& launch, Pool& pool, SharedMemoryUse shared) const {
  if (shared == SharedMemoryUse::on) {
    fail_all(ExitCode::launch, "comm.shared_memory: on is for ranks on cores; on GPUs, auto or off");
  }
  launch.set_device(make_cuda_device(device_, !shared_),
                    [&pool](std::int64_t bytes) { return pool.take(MemoryTag::buffers, bytes); });
  log_info("GPUs: one a rank" + std::string(shared_ ? ", some shared" : "") + "; " + launch.device_summary());
  return {&pool, [&launch](void*) { launch.set_device(nullptr, {}); }};
}

RegionHooks Devices::region_hooks() {
  return {push_region, pop_region};
}

}  // namespace fourfold
