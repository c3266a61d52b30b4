// Where the kernels of a job run: on this rank's cores (devices_host.cpp), or in a program that was built with
// FOURFOLD_CUDA on a GPU of its own (devices_cuda.cpp). A program has one of the two.
#pragma once

#include <Kokkos_Core.hpp>
#include <memory>

#include "base/trace.hpp"
#include "comm/launch.hpp"
#include "deck/deck.hpp"
#include "tensor/tensor.hpp"

namespace fourfold {

class Devices {
 public:
  // Chooses this rank's device. All ranks, before the nodes of a machine file stand for the real ones. Errors: Error of
  // all ranks (launch): no device, or one for several ranks.
  explicit Devices(const Communicator& world);

  std::unique_ptr<Kokkos::ScopeGuard> start_kokkos() const;
  // Collectives know the device and take their own buffers from the pool for the life of the result; on cores the
  // pool's memory is shared with the node's other ranks, where `shared` allows it. All ranks. Errors: Error of all
  // ranks (launch) where it is `on` and cannot be.
  std::shared_ptr<void> attach(const Launch& launch, Pool& pool, SharedMemoryUse shared) const;
  // Regions of the trace, for Kokkos' tools (and Nsight).
  static RegionHooks region_hooks();

 private:
  int device_ = -1;
  bool shared_ = false;
};

}  // namespace fourfold
