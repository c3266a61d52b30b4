// fp32: oneDNN's matmul in every shape. Measured on AVX2 (AMD Milan, one core, GFLOP/s, oneDNN 2.6.3 against OpenBLAS
// 0.3.21): 512x192x192 90 to 80, 64x64x64 77 to 60, 8x768x768 50 to 44; OpenBLAS wins only from 16x16x16 down
// (7 to 18), where a call takes a microsecond. A few rows: few_rows_product.hpp. bf16: oneDNN's where it has one (from
// AVX-512 on), else widened_product.hpp's in fp32.
#include "kernels/library_product.hpp"

#include <cblas.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <dnnl.hpp>
#include <limits>
#include <list>
#include <stdexcept>
#include <unordered_map>

#include "kernels/bias.hpp"
#include "kernels/few_rows_product.hpp"
#include "kernels/gemm.hpp"
#include "kernels/product_parts.hpp"
#include "kernels/widened_product.hpp"

namespace fourfold::kernels {

namespace {

// A function of whichever library the program was linked or started with, null if it has none of that name.
template <class Function>
Function* library_function(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

// The thread count of the product libraries: one until set_product_threads says otherwise.
class ProductThreads {
 public:
  static ProductThreads& instance() {
    static ProductThreads threads;
    return threads;
  }

  void set(int count) {
    count_ = count;
    if (set_blas_ != nullptr) set_blas_(count);
  }
  int count() const { return count_; }

  // oneDNN (and BLAS built on OpenMP) take the calling thread's OpenMP setting. It is set for the length of a product
  // only: a Kokkos back end on OpenMP in the same process keeps its own.
  class Scope {
   public:
    explicit Scope(const ProductThreads& threads) : threads_(threads) {
      if (!available()) return;
      before_ = threads_.get_omp_();
      if (before_ != threads_.count()) threads_.set_omp_(threads_.count());
    }
    ~Scope() {
      if (available() && before_ != threads_.count()) threads_.set_omp_(before_);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    bool available() const { return threads_.get_omp_ != nullptr && threads_.set_omp_ != nullptr; }

    const ProductThreads& threads_;
    int before_ = 0;
  };

 private:
  ProductThreads() { set(1); }

  void (*const set_blas_)(int) = library_function<void(int)>("openblas_set_num_threads");
  void (*const set_omp_)(int) = library_function<void(int)>("omp_set_num_threads");
  int (*const get_omp_)() = library_function<int()>("omp_get_max_threads");
  std::atomic<int> count_{1};
};

struct ProductKey {
  Index m, n, k, lda, ldb, ldc;
  bool transpose_a, transpose_b, add, biased;
  int threads;  // oneDNN fixes a primitive's threads when it is made
  dnnl::memory::data_type operands, result;

  bool operator==(const ProductKey&) const = default;
};

struct ProductKeyHash {
  std::size_t operator()(const ProductKey& key) const {
    std::uint64_t hash = static_cast<std::uint64_t>(key.transpose_a) |
                         static_cast<std::uint64_t>(key.transpose_b) << 1 | static_cast<std::uint64_t>(key.add) << 2 |
                         static_cast<std::uint64_t>(key.biased) << 3 | static_cast<std::uint64_t>(key.threads) << 4 |
                         static_cast<std::uint64_t>(key.operands) << 32 | static_cast<std::uint64_t>(key.result) << 40;
    for (const Index value : {key.m, key.n, key.k, key.lda, key.ldb, key.ldc}) {
      hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 32;
    }
    return hash;
  }
};

// A primitive and the memory objects that its arguments go through.
class Product {
 public:
  Product(const dnnl::engine& engine, const ProductKey& key)
      : a_(matrix(key.operands, key.m, key.k, key.transpose_a, key.lda), engine, DNNL_MEMORY_NONE),
        b_(matrix(key.operands, key.k, key.n, key.transpose_b, key.ldb), engine, DNNL_MEMORY_NONE),
        c_(matrix(key.result, key.m, key.n, false, key.ldc), engine, DNNL_MEMORY_NONE),
        bias_(matrix(key.operands, 1, key.n, false, key.n), engine, DNNL_MEMORY_NONE),
        arguments_{{DNNL_ARG_SRC, a_}, {DNNL_ARG_WEIGHTS, b_}, {DNNL_ARG_BIAS, bias_}, {DNNL_ARG_DST, c_}} {
    if (!key.biased) arguments_.erase(DNNL_ARG_BIAS);
    dnnl::primitive_attr attributes;
    if (key.add) {
      dnnl::post_ops sum;
      sum.append_sum();
      attributes.set_post_ops(sum);
    }
#if DNNL_VERSION_MAJOR >= 3
    primitive_ = key.biased
                     ? dnnl::matmul({engine, a_.get_desc(), b_.get_desc(), bias_.get_desc(), c_.get_desc(), attributes})
                     : dnnl::matmul({engine, a_.get_desc(), b_.get_desc(), c_.get_desc(), attributes});
#else
    const dnnl::matmul::desc product =
        key.biased ? dnnl::matmul::desc(a_.get_desc(), b_.get_desc(), bias_.get_desc(), c_.get_desc())
                   : dnnl::matmul::desc(a_.get_desc(), b_.get_desc(), c_.get_desc());
    primitive_ = dnnl::matmul({product, attributes, engine});
#endif
  }

  void run(const dnnl::stream& stream, const void* a, const void* b, const void* bias, void* c) {
    a_.set_data_handle(const_cast<void*>(a));  // oneDNN has no const memory; it only reads its source
    b_.set_data_handle(const_cast<void*>(b));
    if (bias != nullptr) bias_.set_data_handle(const_cast<void*>(bias));
    c_.set_data_handle(c);
    primitive_.execute(stream, arguments_);
  }

 private:
  static dnnl::memory::desc matrix(dnnl::memory::data_type type, Index rows, Index cols, bool transposed,
                                   Index leading) {
    return {{rows, cols}, type, transposed ? dnnl::memory::dims{1, leading} : dnnl::memory::dims{leading, 1}};
  }

  dnnl::memory a_, b_, c_, bias_;
  std::unordered_map<int, dnnl::memory> arguments_;  // the same objects as a_, b_, c_, bias_
  dnnl::matmul primitive_;
};

// Products by shape, the least recently used dropped. Making one takes 10 to 100 microseconds, finding one well under
// one.
class ProductCache {
 public:
  ProductCache() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {}

  void run(const ProductKey& key, const void* a, const void* b, const void* bias, void* c) {
    const auto found = index_.find(key);
    if (found != index_.end()) {
      entries_.splice(entries_.begin(), entries_, found->second);
    } else {
      if (entries_.size() == kCapacity) {
        index_.erase(entries_.back().first);
        entries_.pop_back();
      }
      entries_.emplace_front(key, Product(engine_, key));
      index_.emplace(key, entries_.begin());
    }
    entries_.front().second.run(stream_, a, b, bias, c);
    stream_.wait();
  }

 private:
  static constexpr std::size_t kCapacity = 256;
  using Entries = std::list<std::pair<ProductKey, Product>>;

  dnnl::engine engine_;
  dnnl::stream stream_;
  Entries entries_;  // newest first
  std::unordered_map<ProductKey, Entries::iterator, ProductKeyHash> index_;
};

template <class T>
constexpr auto kOneDnnType = dnnl::memory::data_type::f32;
template <>
constexpr auto kOneDnnType<bf16> = dnnl::memory::data_type::bf16;

template <class T, class C>
void onednn_product(const Operands<T, C>& p) {
  const ProductThreads& threads = ProductThreads::instance();
  const ProductThreads::Scope scope(threads);
  // One cache a thread: a primitive's memory objects serve one call at a time.
  thread_local ProductCache cache;
  const ProductKey key{p.m,
                       p.n,
                       p.k,
                       p.lda,
                       p.ldb,
                       p.ldc,
                       p.transpose_a,
                       p.transpose_b,
                       p.add,
                       p.bias != nullptr,
                       threads.count(),
                       kOneDnnType<T>,
                       kOneDnnType<C>};
  cache.run(key, p.a, p.b, p.bias, p.c);
}

// Whether oneDNN multiplies bf16 on this machine.
bool has_bf16_products() {
  static const bool has = [] {
    const bf16 one(1.0f);
    float product = 0.0f;
    try {
      onednn_product<bf16, float>({false, true, 1, 1, 1, &one, 1, &one, 1, &product, 1, false, nullptr});
      bf16 biased(0.0f);
      onednn_product<bf16, bf16>({false, true, 1, 1, 1, &one, 1, &one, 1, &biased, 1, false, &one});
      if (biased != 2.0f) return false;
    } catch (const dnnl::error&) {
      return false;
    }
    return product == 1.0f;
  }();
  return has;
}

void blas_product(const Space& space, const Operands<double, double>& p) {
  {
    const ProductThreads::Scope scope(ProductThreads::instance());
    for_each_product_part(p.m, p.n, p.k, std::numeric_limits<int>::max(), [&](const ProductPart& part) {
      cblas_dgemm(CblasRowMajor, p.transpose_a ? CblasTrans : CblasNoTrans, p.transpose_b ? CblasTrans : CblasNoTrans,
                  static_cast<int>(part.rows), static_cast<int>(part.cols), static_cast<int>(part.inners), 1.0,
                  p.a + (p.transpose_a ? part.inner * p.lda + part.row : part.row * p.lda + part.inner),
                  static_cast<int>(p.lda),
                  p.b + (p.transpose_b ? part.col * p.ldb + part.inner : part.inner * p.ldb + part.col),
                  static_cast<int>(p.ldb), p.add || part.inner > 0 ? 1.0 : 0.0, p.c + part.row * p.ldc + part.col,
                  static_cast<int>(p.ldc));
    });
  }
  // Of linear_forward, whose C is contiguous.
  assert(p.bias == nullptr || p.ldc == p.n);
  if (p.bias != nullptr) {
    bias_forward<double, double>(space, Vector<const double>(p.bias, p.n), Matrix<double>(p.c, p.m, p.n));
  }
}

}  // namespace

void set_product_threads(int threads) {
  if (threads < 1) throw std::invalid_argument("set_product_threads: the count must be 1 or more");
  ProductThreads::instance().set(threads);
}

// BLAS counts in 32 bits; sizes are cut, a leading dimension cannot be.
template <class T, class C>
bool library_takes(const Operands<T, C>& p) {
  return !std::is_same_v<T, double> || std::max({p.lda, p.ldb, p.ldc}) <= std::numeric_limits<int>::max();
}

template <class T, class C>
void library_product(const Space& space, const Operands<T, C>& p) {
  if constexpr (std::is_same_v<T, double>) {
    blas_product(space, p);
  } else if (has_few_rows(p)) {
    few_rows_product(space, p);
  } else if (std::is_same_v<T, float> || has_bf16_products()) {
    onednn_product(p);
  } else {
    if constexpr (std::is_same_v<T, bf16>) {
      widened_product(p.transpose_a, p.transpose_b, p.m, p.n, p.k, p.a, p.lda, p.b, p.ldb, p.c, p.ldc, p.add, p.bias);
    }
  }
}

#define FOURFOLD_INSTANTIATE(T, C)                      \
  template bool library_takes(const Operands<T, C>& p); \
  template void library_product(const Space&, const Operands<T, C>& p);
FOURFOLD_INSTANTIATE(float, float)
FOURFOLD_INSTANTIATE(double, double)
FOURFOLD_INSTANTIATE(bf16, bf16)
FOURFOLD_INSTANTIATE(bf16, float)
#undef FOURFOLD_INSTANTIATE

}  // namespace fourfold::kernels
