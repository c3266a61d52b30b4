// Matrix products on a CUDA device, through cuBLASLt: what gemm.cpp calls where Space is one. Needs the CUDA Toolkit
// but no Kokkos with CUDA, so that it is compiled, and its errors tested, wherever there is a toolkit.
//
//   fp64           sums in fp64
//   fp32           sums in fp32; TF32, which keeps 10 bits of a factor, is not used
//   bf16 -> bf16   sums in fp32, rounded once
//   bf16 -> fp32   sums in fp32
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace fourfold::kernels {

struct bf16;  // bf16.hpp

enum class DeviceNumber { fp32, fp64, bf16 };
template <class T>
inline constexpr DeviceNumber kDeviceNumber = DeviceNumber::fp32;
template <>
inline constexpr DeviceNumber kDeviceNumber<double> = DeviceNumber::fp64;
template <>
inline constexpr DeviceNumber kDeviceNumber<bf16> = DeviceNumber::bf16;

// What is done to a sum before it is written. `bias` has n elements of C's type, one a column.
enum class Epilogue { none, bias };

// All that an algorithm is chosen by but the addresses' alignment. C = op(A) op(B) (+ C), row-major, as in gemm.hpp.
struct DeviceProduct {
  bool transpose_a = false, transpose_b = false;
  std::int64_t m = 0, n = 0, k = 0, lda = 0, ldb = 0, ldc = 0;
  DeviceNumber in = DeviceNumber::fp32, out = DeviceNumber::fp32;
  bool add = false;
  Epilogue epilogue = Epilogue::none;

  bool operator==(const DeviceProduct&) const = default;
};

// Device memory that products use, allocated at the first one and kept. All products of a process run on one stream.
inline constexpr std::size_t kDeviceWorkspaceBytes = std::size_t(32) << 20;

// Queues the product on `stream`. m, n, k > 0. Errors: std::runtime_error with the shape and what CUDA or cuBLASLt
// says; without a device "no CUDA device".
void run_device_product(const DeviceProduct& product, const void* a, const void* b, void* c, const void* bias,
                        CUstream_st* stream);

template <class In, class Out>
void device_product(DeviceProduct product, const In* a, const In* b, Out* c, const Out* bias, CUstream_st* stream) {
  product.in = kDeviceNumber<In>;
  product.out = kDeviceNumber<Out>;
  run_device_product(product, a, b, c, bias, stream);
}

}  // namespace fourfold::kernels
