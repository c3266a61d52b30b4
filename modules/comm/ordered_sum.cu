#include <algorithm>
#include <cstdint>

#include "comm/ordered_sum.hpp"

namespace fourfold {

namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMostBlocks = 4096;

// Element by element: `sum` may be the own term.
template <class T>
__global__ void ordered_sum(const T* own, const T* others, int rank, int ranks, std::int64_t count, T* sum) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    T total = rank == 0 ? own[i] : others[i];
    for (int r = 1; r < ranks; ++r) total += r == rank ? own[i] : others[(r < rank ? r : r - 1) * count + i];
    sum[i] = total;
  }
}

template <class T>
cudaError_t launch(const DeviceGroup::Terms& terms, void* sum, cudaStream_t stream) {
  if (terms.count == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(std::min((terms.count + kThreads - 1) / kThreads, kMostBlocks));
  ordered_sum<T><<<blocks, kThreads, 0, stream>>>(static_cast<const T*>(terms.own), static_cast<const T*>(terms.others),
                                                  terms.rank, terms.ranks, terms.count, static_cast<T*>(sum));
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_ordered_sum(WireNumber number, const DeviceGroup::Terms& terms, void* sum, cudaStream_t stream) {
  switch (number) {
    case WireNumber::float32:
      return launch<float>(terms, sum, stream);
    case WireNumber::float64:
      return launch<double>(terms, sum, stream);
    case WireNumber::int32:
      return launch<std::int32_t>(terms, sum, stream);
    case WireNumber::int64:
      return launch<std::int64_t>(terms, sum, stream);
    default:
      return cudaErrorInvalidValue;  // moved, never added
  }
}

}  // namespace fourfold
