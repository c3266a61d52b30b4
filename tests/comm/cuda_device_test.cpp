// CUDA's runtime and NCCL behind comm/cuda_device.hpp: the errors on a machine without a GPU; with one, the additions
// of deterministic sums, and collectives of ranks that share it, which go through the host's memory.
#include "comm/cuda_device.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "comm/collectives.hpp"
#include "comm/device_choice.hpp"
#include "comm/launch.hpp"
#include "comm/ordered_sum.hpp"
#include "mpi_test.hpp"

namespace fourfold::test {
namespace {

constexpr const char* kNoGpu = "NOT TESTED: no CUDA device on this machine; the sources were compiled and linked";

template <class T>
class Array {
 public:
  explicit Array(const std::vector<T>& values) : count_(values.size()) {
    EXPECT_EQ(cudaMalloc(&data_, count_ * sizeof(T)), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
  }
  ~Array() { cudaFree(data_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  std::span<T> span() const { return {static_cast<T*>(data_), count_}; }
  std::vector<T> values() const {
    std::vector<T> values(count_);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return values;
  }

 private:
  std::size_t count_;
  void* data_ = nullptr;
};

double number(int rank, std::size_t i) {
  return static_cast<double>((i * 2654435761u + static_cast<std::size_t>(rank) * 40503u) % 100003u) / 7.0;
}

TEST(CudaDevice, WithoutOneTheErrorSaysSo) {
  if (cuda_devices() > 0)
    GTEST_SKIP() << "NOT TESTED: the error of a machine without a CUDA device, and this one has one";
  for (const bool with_groups : {false, true}) {
    try {
      make_cuda_device(0, with_groups);
      FAIL() << "an error was expected";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::launch);
      EXPECT_EQ(std::string(error.what()).rfind("no CUDA device: cudaGetDeviceCount says \"", 0), 0u) << error.what();
    }
  }
  EXPECT_THROW(cuda_device_id(0), Error);
}

// What the program does first: every rank ends with code 3 and one message.
TEST(CudaDevice, WithoutOneAllRanksRefuse) {
  if (cuda_devices() > 0)
    GTEST_SKIP() << "NOT TESTED: the error of a machine without a CUDA device, and this one has one";
  try {
    agree_on_device(launch().world(), {cuda_devices, cuda_device_id, false});
    FAIL() << "an error was expected";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::launch);
    EXPECT_EQ(std::string(error.what()).rfind("rank 0: no CUDA device", 0), 0u) << error.what();
  }
}

TEST(CudaDevice, AddsInTheOrderOfRanks) {
  if (cuda_devices() == 0) GTEST_SKIP() << kNoGpu;
  constexpr int kRanks = 5;
  constexpr std::size_t kCount = 100'003;
  for (const int rank : {0, 2, kRanks - 1}) {
    std::vector<double> own, others, wanted(kCount, 0.0);
    for (std::size_t i = 0; i < kCount; ++i) own.push_back(number(rank, i));
    for (int r = 0; r < kRanks; ++r) {
      for (std::size_t i = 0; i < kCount; ++i) {
        wanted[i] = r == 0 ? number(r, i) : wanted[i] + number(r, i);
        if (r != rank) others.push_back(number(r, i));
      }
    }
    const Array<double> device_own(own), device_others(others);
    ASSERT_EQ(launch_ordered_sum(WireNumber::float64,
                                 {device_own.span().data(), device_others.span().data(), rank, kRanks, kCount},
                                 device_own.span().data(), nullptr),
              cudaSuccess);
    EXPECT_EQ(device_own.values(), wanted);
  }
}

TEST(CudaDevice, RanksThatShareOneGoThroughTheHost) {
  if (cuda_devices() == 0) GTEST_SKIP() << kNoGpu;
  const Communicator& world = launch().world();
  const AgreedDevice agreed = agree_on_device(world, {cuda_devices, cuda_device_id, true});
  launch().set_device(make_cuda_device(agreed.device, !agreed.shared), [](std::int64_t bytes) {
    void* data = nullptr;
    EXPECT_EQ(cudaMalloc(&data, static_cast<std::size_t>(bytes)), cudaSuccess);
    return std::shared_ptr<void>(data, [](void* p) { cudaFree(p); });
  });
  std::printf("%s\n", launch().device_summary().c_str());
  constexpr std::size_t kCount = 1001;
  std::vector<double> mine, wanted(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    mine.push_back(number(world.rank(), i));
    wanted[i] = number(0, i);
    for (int r = 1; r < world.size(); ++r) wanted[i] += number(r, i);
  }
  const Array<double> data(mine);
  all_reduce_sum<double>(world, data.span(), Summation::deterministic, Phase::gradient);
  EXPECT_EQ(data.values(), wanted);
  launch().set_device(nullptr, {});
}

}  // namespace
}  // namespace fourfold::test
