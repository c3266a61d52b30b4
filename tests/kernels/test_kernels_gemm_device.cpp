// cuBLASLt products (kernels/gemm_device.hpp) in memory of CUDA's runtime, without Kokkos: the errors on a machine
// without a GPU; where there is one, every combination against plain loops.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/gemm_device.hpp"

namespace fourfold::kernels {
namespace {

bool has_device() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
}

std::string error_of(const DeviceProduct& product) {
  try {
    run_device_product(product, nullptr, nullptr, nullptr, nullptr, nullptr);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(GemmDevice, WithoutADeviceTheErrorSaysSoAndNamesTheShape) {
  if (has_device()) GTEST_SKIP() << "NOT TESTED: this machine has a CUDA device";
  const DeviceProduct product{.transpose_b = true,
                              .m = 512,
                              .n = 768,
                              .k = 3072,
                              .lda = 3072,
                              .ldb = 3073,
                              .ldc = 800,
                              .in = DeviceNumber::bf16,
                              .out = DeviceNumber::fp32,
                              .add = true};
  for (int repeat = 0; repeat < 2; ++repeat) {  // a first failure leaves nothing behind
    const std::string error = error_of(product);
    EXPECT_NE(error.find("no CUDA device"), std::string::npos) << error;
    EXPECT_NE(error.find("C (512 x 768, fp32, ld 800) += A (ld 3072) B^T (ld 3073) in bf16 over k = 3072"),
              std::string::npos)
        << error;
  }
}

TEST(GemmDevice, TypesSayWhatTheyAre) {
  EXPECT_EQ(kDeviceNumber<float>, DeviceNumber::fp32);
  EXPECT_EQ(kDeviceNumber<double>, DeviceNumber::fp64);
  EXPECT_EQ(kDeviceNumber<bf16>, DeviceNumber::bf16);
}

// Numbers in device memory, in any of the three types.
class Buffer {
 public:
  Buffer(DeviceNumber number, const std::vector<double>& values) : number_(number), count_(values.size()) {
    EXPECT_EQ(cudaMalloc(&data_, bytes()), cudaSuccess);
    std::vector<unsigned char> raw(bytes());
    for (std::size_t i = 0; i < count_; ++i) store(raw.data() + i * width(), values[i]);
    EXPECT_EQ(cudaMemcpy(data_, raw.data(), bytes(), cudaMemcpyHostToDevice), cudaSuccess);
  }
  ~Buffer() { cudaFree(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() const { return data_; }
  std::vector<double> values() const {
    std::vector<unsigned char> raw(bytes());
    EXPECT_EQ(cudaMemcpy(raw.data(), data_, bytes(), cudaMemcpyDeviceToHost), cudaSuccess);
    std::vector<double> values(count_);
    for (std::size_t i = 0; i < count_; ++i) values[i] = load(raw.data() + i * width());
    return values;
  }

 private:
  std::size_t width() const { return number_ == DeviceNumber::fp64 ? 8 : number_ == DeviceNumber::fp32 ? 4 : 2; }
  std::size_t bytes() const { return count_ * width(); }
  void store(unsigned char* to, double value) const {
    const auto single = static_cast<float>(value);
    const auto half = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(single) >> 16);
    if (number_ == DeviceNumber::fp64) {
      std::memcpy(to, &value, 8);
    } else if (number_ == DeviceNumber::fp32) {
      std::memcpy(to, &single, 4);
    } else {
      std::memcpy(to, &half, 2);
    }
  }
  double load(const unsigned char* from) const {
    double value = 0;
    float single = 0;
    std::uint16_t half = 0;
    switch (number_) {
      case DeviceNumber::fp64:
        std::memcpy(&value, from, 8);
        return value;
      case DeviceNumber::fp32:
        std::memcpy(&single, from, 4);
        return single;
      default:
        std::memcpy(&half, from, 2);
        return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16);
    }
  }

  DeviceNumber number_;
  std::size_t count_;
  void* data_ = nullptr;
};

// Multiples of 1/8 in [-1, 1): exact in bf16, and so are sums of a few hundred products in fp32.
std::vector<double> eighths(std::int64_t count, unsigned salt) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto mixed = (static_cast<std::uint64_t>(i) + salt) * 0x9E3779B97F4A7C15u;
    values.push_back((static_cast<double>(mixed >> 60) - 8.0) / 8.0);
  }
  return values;
}

void compare_with_loops(const DeviceProduct& p) {
  const std::int64_t rows_a = p.transpose_a ? p.k : p.m, rows_b = p.transpose_b ? p.n : p.k;
  const std::vector<double> a = eighths(rows_a * p.lda, 1), b = eighths(rows_b * p.ldb, 2);
  const std::vector<double> c = eighths(p.m * p.ldc, 3), bias = eighths(p.n, 4);
  const Buffer device_a(p.in, a), device_b(p.in, b), device_c(p.out, c), device_bias(p.out, bias);
  run_device_product(p, device_a.data(), device_b.data(), device_c.data(), device_bias.data(), nullptr);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const std::vector<double> got = device_c.values();
  const auto at = [](const std::vector<double>& x, std::int64_t i) { return x[static_cast<std::size_t>(i)]; };
  for (std::int64_t i = 0; i < p.m; ++i) {
    for (std::int64_t j = 0; j < p.ldc; ++j) {
      double want = at(c, i * p.ldc + j);
      double tolerance = 0;
      if (j < p.n) {
        double sum = p.add ? want : 0.0;
        for (std::int64_t l = 0; l < p.k; ++l) {
          sum += at(a, p.transpose_a ? l * p.lda + i : i * p.lda + l) *
                 at(b, p.transpose_b ? j * p.ldb + l : l * p.ldb + j);
        }
        if (p.epilogue != Epilogue::none) sum += at(bias, j);
        want = sum;
        if (p.out == DeviceNumber::bf16) tolerance = std::max(tolerance, std::fabs(want) / 256);
      }
      ASSERT_NEAR(at(got, i * p.ldc + j), want, tolerance) << "row " << i << ", column " << j;
    }
  }
}

TEST(GemmDevice, EveryCombinationIsThePlainLoop) {
  if (!has_device()) GTEST_SKIP() << "NOT TESTED: no CUDA device on this machine; products were compiled and linked";
  struct Types {
    DeviceNumber in, out;
  };
  for (const Types types :
       {Types{DeviceNumber::fp32, DeviceNumber::fp32}, Types{DeviceNumber::fp64, DeviceNumber::fp64},
        Types{DeviceNumber::bf16, DeviceNumber::bf16}, Types{DeviceNumber::bf16, DeviceNumber::fp32}}) {
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        for (const std::int64_t pad : {0, 8}) {
          DeviceProduct p{.transpose_a = transpose_a, .transpose_b = transpose_b, .m = 40, .n = 72, .k = 56};
          p.lda = (transpose_a ? p.m : p.k) + pad;
          p.ldb = (transpose_b ? p.k : p.n) + pad;
          p.ldc = p.n + pad;
          p.in = types.in;
          p.out = types.out;
          compare_with_loops(p);
          p.add = p.out != DeviceNumber::bf16;
          compare_with_loops(p);
          p.add = false;
          p.epilogue = Epilogue::bias;
          compare_with_loops(p);
        }
      }
    }
  }
}

}  // namespace
}  // namespace fourfold::kernels
