// cuBLASLt counts columns first: a row-major C = op(A) op(B) is its C^T = op(B)^T op(A)^T, so B is its first factor, A
// its second, n its rows, and a bias of one number a row is ours of one a column.
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <list>
#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

#include "kernels/gemm_device.hpp"

namespace fourfold::kernels {

namespace {

const char* name_of(DeviceNumber number) {
  switch (number) {
    case DeviceNumber::fp64:
      return "fp64";
    case DeviceNumber::bf16:
      return "bf16";
    default:
      return "fp32";
  }
}

// "C (512 x 768, fp32, ld 768) += A^T (ld 512) B (ld 768, bf16) over k = 3072, with bias"
std::string describe(const DeviceProduct& p) {
  const auto factor = [](const char* name, bool transposed, std::int64_t leading) {
    return std::string(name) + (transposed ? "^T" : "") + " (ld " + std::to_string(leading) + ")";
  };
  return std::string("C (") + std::to_string(p.m) + " x " + std::to_string(p.n) + ", " + name_of(p.out) + ", ld " +
         std::to_string(p.ldc) + ") " + (p.add ? "+= " : "= ") + factor("A", p.transpose_a, p.lda) + " " +
         factor("B", p.transpose_b, p.ldb) + " in " + name_of(p.in) + " over k = " + std::to_string(p.k) +
         (p.epilogue == Epilogue::bias ? ", with bias" : "");
}

[[noreturn]] void fail(const DeviceProduct& product, const std::string& what) {
  throw std::runtime_error("matrix product on a CUDA device: " + what + "; " + describe(product));
}

void check(cudaError_t code, const char* call, const DeviceProduct& product) {
  if (code == cudaSuccess) return;
  const std::string text = std::string(call) + " says \"" + cudaGetErrorString(code) + "\"";
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) fail(product, "no CUDA device: " + text);
  fail(product, text);
}

void check(cublasStatus_t status, const char* call, const DeviceProduct& product) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    fail(product, std::string(call) + " returned " + cublasLtGetStatusName(status) + " (" +
                      cublasLtGetStatusString(status) + ")");
  }
}

cudaDataType_t data_type(DeviceNumber number) {
  switch (number) {
    case DeviceNumber::fp64:
      return CUDA_R_64F;
    case DeviceNumber::bf16:
      return CUDA_R_16BF;
    default:
      return CUDA_R_32F;
  }
}

// What cuBLASLt makes, and what ends it.
template <class Handle, cublasStatus_t (*Destroy)(Handle)>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, decltype([](Handle handle) { Destroy(handle); })>;
using Description = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

// The largest power of two, 256 at most, that divides an address: algorithms differ in what they want.
std::uint32_t alignment_of(const void* address) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address);
  return bits == 0 ? 256 : static_cast<std::uint32_t>(std::min<std::uintptr_t>(bits & (~bits + 1), 256));
}

struct Key {
  DeviceProduct product;
  std::uint32_t align_a, align_b, align_c, align_bias;

  bool operator==(const Key&) const = default;
};

struct KeyHash {
  std::size_t operator()(const Key& key) const {
    const DeviceProduct& p = key.product;
    std::uint64_t hash = static_cast<std::uint64_t>(p.transpose_a) | static_cast<std::uint64_t>(p.transpose_b) << 1 |
                         static_cast<std::uint64_t>(p.add) << 2 | static_cast<std::uint64_t>(p.in) << 3 |
                         static_cast<std::uint64_t>(p.out) << 5 | static_cast<std::uint64_t>(p.epilogue) << 7;
    for (const std::int64_t value :
         {p.m, p.n, p.k, p.lda, p.ldb, p.ldc, std::int64_t{key.align_a}, std::int64_t{key.align_b},
          std::int64_t{key.align_c}, std::int64_t{key.align_bias}}) {
      hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 32;
    }
    return hash;
  }
};

// A product's description and the algorithm that cuBLASLt's heuristic puts first.
class Plan {
 public:
  Plan(cublasLtHandle_t handle, const Key& key) {
    const DeviceProduct& p = key.product;
    const bool fp64 = p.in == DeviceNumber::fp64;
    if (fp64 != (p.out == DeviceNumber::fp64) || (p.in == DeviceNumber::fp32 && p.out != DeviceNumber::fp32) ||
        (p.out == DeviceNumber::bf16 && p.add)) {
      fail(p, "these number types are not supported together");
    }
    cublasLtMatmulDesc_t description = nullptr;
    check(cublasLtMatmulDescCreate(&description, fp64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                   fp64 ? CUDA_R_64F : CUDA_R_32F),
          "cublasLtMatmulDescCreate", p);
    description_.reset(description);
    set(p, CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(p, CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (p.epilogue != Epilogue::none) {
      set(p, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(p, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(p.out));
    }
    b_ = layout(p, p.in, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.ldb);
    a_ = layout(p, p.in, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.lda);
    c_ = layout(p, p.out, p.m, p.n, p.ldc);
    choose(handle, key);
  }

  void run(cublasLtHandle_t handle, const DeviceProduct& p, const void* a, const void* b, void* c, const void* bias,
           void* workspace, cudaStream_t stream) const {
    if (p.epilogue != Epilogue::none) set(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    const double one64 = 1.0, beta64 = p.add ? 1.0 : 0.0;
    const float one32 = 1.0f, beta32 = p.add ? 1.0f : 0.0f;
    const bool fp64 = p.in == DeviceNumber::fp64;
    const void* alpha = fp64 ? static_cast<const void*>(&one64) : &one32;
    const void* beta = fp64 ? static_cast<const void*>(&beta64) : &beta32;
    check(cublasLtMatmul(handle, description_.get(), alpha, b, b_.get(), a, a_.get(), beta, c, c_.get(), c, c_.get(),
                         &algorithm_, workspace, kDeviceWorkspaceBytes, stream),
          "cublasLtMatmul", p);
  }

 private:
  template <class Value>
  void set(const DeviceProduct& p, cublasLtMatmulDescAttributes_t attribute, Value value) const {
    check(cublasLtMatmulDescSetAttribute(description_.get(), attribute, &value, sizeof value),
          "cublasLtMatmulDescSetAttribute", p);
  }

  // A row-major matrix of rows x cols, as cuBLASLt sees it.
  static Layout layout(const DeviceProduct& p, DeviceNumber number, std::int64_t rows, std::int64_t cols,
                       std::int64_t leading) {
    cublasLtMatrixLayout_t made = nullptr;
    check(cublasLtMatrixLayoutCreate(&made, data_type(number), static_cast<std::uint64_t>(cols),
                                     static_cast<std::uint64_t>(rows), leading),
          "cublasLtMatrixLayoutCreate", p);
    return Layout(made);
  }

  void choose(cublasLtHandle_t handle, const Key& key) {
    cublasLtMatmulPreference_t made = nullptr;
    check(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate", key.product);
    const Preference preference(made);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value),
            "cublasLtMatmulPreferenceSetAttribute", key.product);
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kDeviceWorkspaceBytes);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.align_b);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.align_a);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.align_c);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.align_c);
    cublasLtMatmulHeuristicResult_t best{};
    int found = 0;
    check(cublasLtMatmulAlgoGetHeuristic(handle, description_.get(), b_.get(), a_.get(), c_.get(), c_.get(),
                                         preference.get(), 1, &best, &found),
          "cublasLtMatmulAlgoGetHeuristic", key.product);
    if (found == 0) fail(key.product, "cuBLASLt has no algorithm for it");
    check(best.state, "cublasLtMatmulAlgoGetHeuristic", key.product);
    algorithm_ = best.algo;
  }

  Description description_;
  Layout a_, b_, c_;
  cublasLtMatmulAlgo_t algorithm_{};
};

// The handle, the workspace, and plans by shape, the least recently used dropped. Of the device that is current at the
// first product; one thread computes.
class Products {
 public:
  explicit Products(const DeviceProduct& first) {
    check(cudaMalloc(&workspace_, kDeviceWorkspaceBytes), "cudaMalloc of the workspace of matrix products", first);
    const cublasStatus_t status = cublasLtCreate(&handle_);
    if (status != CUBLAS_STATUS_SUCCESS) {
      cudaFree(workspace_);
      check(status, "cublasLtCreate", first);
    }
  }
  ~Products() {
    plans_.clear();
    cublasLtDestroy(handle_);
    cudaFree(workspace_);
  }
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  void run(const DeviceProduct& product, const void* a, const void* b, void* c, const void* bias, cudaStream_t stream) {
    const Key key{product, alignment_of(a), alignment_of(b), alignment_of(c), alignment_of(bias)};
    const auto found = index_.find(key);
    if (found != index_.end()) {
      plans_.splice(plans_.begin(), plans_, found->second);
    } else {
      Plan plan(handle_, key);
      if (plans_.size() == kCapacity) {
        index_.erase(plans_.back().first);
        plans_.pop_back();
      }
      plans_.emplace_front(key, std::move(plan));
      index_.emplace(key, plans_.begin());
    }
    plans_.front().second.run(handle_, product, a, b, c, bias, workspace_, stream);
  }

 private:
  static constexpr std::size_t kCapacity = 512;
  using Plans = std::list<std::pair<Key, Plan>>;

  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  Plans plans_;  // newest first
  std::unordered_map<Key, Plans::iterator, KeyHash> index_;
};

}  // namespace

void run_device_product(const DeviceProduct& product, const void* a, const void* b, void* c, const void* bias,
                        CUstream_st* stream) {
  // Made by the first product that succeeds in it; ends with the thread, before CUDA's own end.
  thread_local std::unique_ptr<Products> products;
  if (products == nullptr) products = std::make_unique<Products>(product);
  products->run(product, a, b, c, bias, stream);
}

}  // namespace fourfold::kernels
