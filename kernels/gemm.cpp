// fp32: oneDNN's matmul in every shape. Measured on AVX2 (AMD Milan, one core, GFLOP/s, oneDNN 2.6.3 against OpenBLAS
// 0.3.21): 512x192x192 90 to 80, 64x64x64 77 to 60, 8x768x768 50 to 44, 1x768x768 29 to 5; OpenBLAS wins only from
// 16x16x16 down (7 to 18), where a call takes a microsecond.
#include "kernels/gemm.hpp"

#include <cblas.h>
#include <dlfcn.h>

#include <atomic>
#include <cassert>
#include <dnnl.hpp>
#include <limits>
#include <list>
#include <stdexcept>
#include <unordered_map>

#include "kernels/product_parts.hpp"

namespace fourfold::kernels {

namespace {

constexpr bool kHostSpace = Kokkos::SpaceAccessibility<Kokkos::HostSpace, Space::memory_space>::accessible;

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
  bool transpose_a, transpose_b, add;
  int threads;  // oneDNN fixes a primitive's threads when it is made

  bool operator==(const ProductKey&) const = default;
};

struct ProductKeyHash {
  std::size_t operator()(const ProductKey& key) const {
    std::uint64_t hash = static_cast<std::uint64_t>(key.transpose_a) |
                         static_cast<std::uint64_t>(key.transpose_b) << 1 | static_cast<std::uint64_t>(key.add) << 2 |
                         static_cast<std::uint64_t>(key.threads) << 3;
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
      : a_(matrix(key.m, key.k, key.transpose_a, key.lda), engine, DNNL_MEMORY_NONE),
        b_(matrix(key.k, key.n, key.transpose_b, key.ldb), engine, DNNL_MEMORY_NONE),
        c_(matrix(key.m, key.n, false, key.ldc), engine, DNNL_MEMORY_NONE),
        arguments_{{DNNL_ARG_SRC, a_}, {DNNL_ARG_WEIGHTS, b_}, {DNNL_ARG_DST, c_}} {
    dnnl::primitive_attr attributes;
    if (key.add) {
      dnnl::post_ops sum;
      sum.append_sum();
      attributes.set_post_ops(sum);
    }
#if DNNL_VERSION_MAJOR >= 3
    primitive_ = dnnl::matmul({engine, a_.get_desc(), b_.get_desc(), c_.get_desc(), attributes});
#else
    primitive_ = dnnl::matmul({{a_.get_desc(), b_.get_desc(), c_.get_desc()}, attributes, engine});
#endif
  }

  void run(const dnnl::stream& stream, const float* a, const float* b, float* c) {
    a_.set_data_handle(const_cast<float*>(a));  // oneDNN has no const memory; it only reads its source
    b_.set_data_handle(const_cast<float*>(b));
    c_.set_data_handle(c);
    primitive_.execute(stream, arguments_);
  }

 private:
  static dnnl::memory::desc matrix(Index rows, Index cols, bool transposed, Index leading) {
    return {{rows, cols},
            dnnl::memory::data_type::f32,
            transposed ? dnnl::memory::dims{1, leading} : dnnl::memory::dims{leading, 1}};
  }

  dnnl::memory a_, b_, c_;
  std::unordered_map<int, dnnl::memory> arguments_;  // the same objects as a_, b_, c_
  dnnl::matmul primitive_;
};

// Products by shape, the least recently used dropped. Making one takes 10 to 100 microseconds, finding one well under
// one.
class ProductCache {
 public:
  ProductCache() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {}

  void run(const ProductKey& key, const float* a, const float* b, float* c) {
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
    entries_.front().second.run(stream_, a, b, c);
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

void library_product(bool transpose_a, bool transpose_b, Index m, Index n, Index k, const float* a, Index lda,
                     const float* b, Index ldb, float* c, Index ldc, bool add) {
  const ProductThreads& threads = ProductThreads::instance();
  const ProductThreads::Scope scope(threads);
  // One cache a thread: a primitive's memory objects serve one call at a time.
  thread_local ProductCache cache;
  cache.run({m, n, k, lda, ldb, ldc, transpose_a, transpose_b, add, threads.count()}, a, b, c);
}

void library_product(bool transpose_a, bool transpose_b, Index m, Index n, Index k, const double* a, Index lda,
                     const double* b, Index ldb, double* c, Index ldc, bool add) {
  const ProductThreads::Scope scope(ProductThreads::instance());
  for_each_product_part(m, n, k, std::numeric_limits<int>::max(), [&](const ProductPart& part) {
    cblas_dgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans, transpose_b ? CblasTrans : CblasNoTrans,
                static_cast<int>(part.rows), static_cast<int>(part.cols), static_cast<int>(part.inners), 1.0,
                a + (transpose_a ? part.inner * lda + part.row : part.row * lda + part.inner), static_cast<int>(lda),
                b + (transpose_b ? part.col * ldb + part.inner : part.inner * ldb + part.col), static_cast<int>(ldb),
                add || part.inner > 0 ? 1.0 : 0.0, c + part.row * ldc + part.col, static_cast<int>(ldc));
  });
}

// BLAS counts in 32 bits; sizes are cut, a leading dimension cannot be.
template <class T>
bool library_takes(Index lda, Index ldb, Index ldc) {
  return std::is_same_v<T, float> || std::max({lda, ldb, ldc}) <= std::numeric_limits<int>::max();
}

}  // namespace

void set_product_threads(int threads) {
  if (threads < 1) throw std::invalid_argument("set_product_threads: the count must be 1 or more");
  ProductThreads::instance().set(threads);
}

template <class T>
void gemm(const Space& space, bool transpose_a, bool transpose_b, Index m, Index n, Index k, const T* a, Index lda,
          const T* b, Index ldb, T* c, Index ldc, Write write) {
  if (m == 0 || n == 0) return;
  if (kHostSpace && k > 0 && library_takes<T>(lda, ldb, ldc)) {
    library_product(transpose_a, transpose_b, m, n, k, a, lda, b, ldb, c, ldc, write == Write::add);
  } else {
    gemm_reference(space, transpose_a, transpose_b, m, n, k, a, lda, b, ldb, c, ldc, write);
  }
}

template <class T>
void gemm_reference(const Space& space, bool transpose_a, bool transpose_b, Index m, Index n, Index k, const T* a,
                    Index lda, const T* b, Index ldb, T* c, Index ldc, Write write) {
  const Index row_a = transpose_a ? 1 : lda;
  const Index step_a = transpose_a ? lda : 1;
  const Index col_b = transpose_b ? ldb : 1;
  const Index step_b = transpose_b ? 1 : ldb;
  const bool add = write == Write::add;
  Kokkos::parallel_for(
      "gemm_reference", Range1(space, 0, m * n), KOKKOS_LAMBDA(const Index element) {
        const Index i = element / n;
        const Index j = element % n;
        T sum = T(0);
        for (Index l = 0; l < k; ++l) sum += a[i * row_a + l * step_a] * b[j * col_b + l * step_b];
        T& target = c[i * ldc + j];
        target = add ? target + sum : sum;
      });
}

template <class T>
void linear_forward(const Space& space, Matrix<const T> x, Matrix<const T> w, Matrix<T> y) {
  assert(y.extent(0) == x.extent(0) && y.extent(1) == w.extent(0) && x.extent(1) == w.extent(1));
  gemm<T>(space, false, true, y.extent(0), y.extent(1), x.extent(1), x.data(), x.stride(0), w.data(), w.stride(0),
          y.data(), y.stride(0));
}

template <class T>
void linear_backward_input(const Space& space, Matrix<const T> dy, Matrix<const T> w, Matrix<T> dx) {
  assert(dx.extent(0) == dy.extent(0) && dx.extent(1) == w.extent(1) && dy.extent(1) == w.extent(0));
  gemm<T>(space, false, false, dx.extent(0), dx.extent(1), dy.extent(1), dy.data(), dy.stride(0), w.data(), w.stride(0),
          dx.data(), dx.stride(0));
}

template <class T>
void linear_backward_weight(const Space& space, Matrix<const T> dy, Matrix<const T> x, Matrix<T> dw, Write write) {
  assert(dw.extent(0) == dy.extent(1) && dw.extent(1) == x.extent(1) && dy.extent(0) == x.extent(0));
  gemm<T>(space, true, false, dw.extent(0), dw.extent(1), dy.extent(0), dy.data(), dy.stride(0), x.data(), x.stride(0),
          dw.data(), dw.stride(0), write);
}

#define FOURFOLD_INSTANTIATE(T)                                                                                        \
  template void gemm<T>(const Space&, bool, bool, Index, Index, Index, const T*, Index, const T*, Index, T*, Index,    \
                        Write);                                                                                        \
  template void gemm_reference<T>(const Space&, bool, bool, Index, Index, Index, const T*, Index, const T*, Index, T*, \
                                  Index, Write);                                                                       \
  template void linear_forward<T>(const Space&, Matrix<const T>, Matrix<const T>, Matrix<T>);                          \
  template void linear_backward_input<T>(const Space&, Matrix<const T>, Matrix<const T>, Matrix<T>);                   \
  template void linear_backward_weight<T>(const Space&, Matrix<const T>, Matrix<const T>, Matrix<T>, Write);
FOURFOLD_INSTANTIATE(float)
FOURFOLD_INSTANTIATE(double)
#undef FOURFOLD_INSTANTIATE

}  // namespace fourfold::kernels
