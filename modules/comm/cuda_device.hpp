// GPUs behind comm/device.hpp: CUDA's runtime and NCCL. A library of its own (comm_cuda) that needs the CUDA Toolkit
// and NCCL but no Kokkos with CUDA, so that it is compiled, and its errors tested, wherever these are; a program for
// GPUs links it.
#pragma once

#include <memory>
#include <string>

#include "comm/device.hpp"

namespace fourfold {

// How many this process sees; 0 also where there is no driver.
int cuda_devices();
// "0000:3b:00.0", the same in every process of a node. Errors: Error (launch, one rank).
std::string cuda_device_id(int device);

// The given device becomes the calling thread's. with_groups: NCCL between the ranks, each of which then has a device
// of its own. NCCL's operations run on one stream, in the order in which they are started: all members of two groups
// start the operations of both in one order. Errors: Error (launch, one rank), "no CUDA device" where there is none.
std::shared_ptr<Device> make_cuda_device(int device, bool with_groups);

}  // namespace fourfold
