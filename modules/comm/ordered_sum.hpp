// The additions of a deterministic sum on a CUDA device. Included by this module's sources only.
#pragma once

#include <cuda_runtime_api.h>

#include "comm/device.hpp"

namespace fourfold {

// DeviceGroup::add_in_order on `stream`; bit for bit what a host's loop gives.
cudaError_t launch_ordered_sum(WireNumber number, const DeviceGroup::Terms& terms, void* sum, cudaStream_t stream);

}  // namespace fourfold
