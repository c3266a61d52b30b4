#include "kernels/gemm.hpp"

#include <cassert>
#include <type_traits>

#include "kernels/bias.hpp"
#include "kernels/library_product.hpp"

namespace fourfold::kernels {

namespace {

template <class T, class C>
void product(const Space& space, const Operands<T, C>& p) {
  assert((std::is_same_v<C, Acc<T>> || !p.add));
  if (p.m == 0 || p.n == 0) return;
  if (p.k > 0 && library_takes(p)) {
    library_product(space, p);
  } else {
    gemm_reference(space, p.transpose_a, p.transpose_b, p.m, p.n, p.k, p.a, p.lda, p.b, p.ldb, p.c, p.ldc,
                   p.add ? Write::add : Write::overwrite);
    // Of linear_forward, whose C is contiguous.
    assert(p.bias == nullptr || p.ldc == p.n);
    if (p.bias != nullptr) bias_forward<T, C>(space, Vector<const T>(p.bias, p.n), Matrix<C>(p.c, p.m, p.n));
  }
}

}  // namespace

template <class T, class C>
void gemm(const Space& space, bool transpose_a, bool transpose_b, Index m, Index n, Index k, const T* a, Index lda,
          const T* b, Index ldb, C* c, Index ldc, Write write) {
  product<T, C>(space, {transpose_a, transpose_b, m, n, k, a, lda, b, ldb, c, ldc, write == Write::add, nullptr});
}

template <class T, class C>
void gemm_reference(const Space& space, bool transpose_a, bool transpose_b, Index m, Index n, Index k, const T* a,
                    Index lda, const T* b, Index ldb, C* c, Index ldc, Write write) {
  const Index row_a = transpose_a ? 1 : lda;
  const Index step_a = transpose_a ? lda : 1;
  const Index col_b = transpose_b ? ldb : 1;
  const Index step_b = transpose_b ? 1 : ldb;
  const bool add = write == Write::add;
  Kokkos::parallel_for(
      "gemm_reference", Range1(space, 0, m * n), KOKKOS_LAMBDA(const Index element) {
        const Index i = element / n;
        const Index j = element % n;
        Acc<T> sum = Acc<T>(0);
        for (Index l = 0; l < k; ++l) sum += a[i * row_a + l * step_a] * b[j * col_b + l * step_b];
        C& target = c[i * ldc + j];
        target = add ? static_cast<C>(target + sum) : static_cast<C>(sum);
      });
}

template <class T, class C>
void linear_forward(const Space& space, Matrix<const T> x, Matrix<const T> w, Matrix<C> y, Vector<const T> bias) {
  assert(y.extent(0) == x.extent(0) && y.extent(1) == w.extent(0) && x.extent(1) == w.extent(1));
  const T* added = bias.extent(0) > 0 ? bias.data() : nullptr;
  product<T, C>(space, {false, true, static_cast<Index>(y.extent(0)), static_cast<Index>(y.extent(1)),
                        static_cast<Index>(x.extent(1)), x.data(), static_cast<Index>(x.stride(0)), w.data(),
                        static_cast<Index>(w.stride(0)), y.data(), static_cast<Index>(y.stride(0)), false, added});
}

template <class T, class C>
void linear_backward_input(const Space& space, Matrix<const T> dy, Matrix<const T> w, Matrix<C> dx, Write write) {
  assert(dx.extent(0) == dy.extent(0) && dx.extent(1) == w.extent(1) && dy.extent(1) == w.extent(0));
  gemm<T, C>(space, false, false, dx.extent(0), dx.extent(1), dy.extent(1), dy.data(), dy.stride(0), w.data(),
             w.stride(0), dx.data(), dx.stride(0), write);
}

template <class T>
void linear_backward_weight(const Space& space, Matrix<const T> dy, Matrix<const T> x, Matrix<Acc<T>> dw, Write write) {
  assert(dw.extent(0) == dy.extent(1) && dw.extent(1) == x.extent(1) && dy.extent(0) == x.extent(0));
  gemm<T, Acc<T>>(space, true, false, dw.extent(0), dw.extent(1), dy.extent(0), dy.data(), dy.stride(0), x.data(),
                  x.stride(0), dw.data(), dw.stride(0), write);
}

#define FOURFOLD_INSTANTIATE(T, C)                                                                                     \
  template void gemm<T, C>(const Space&, bool, bool, Index, Index, Index, const T*, Index, const T*, Index, C*, Index, \
                           Write);                                                                                     \
  template void gemm_reference<T, C>(const Space&, bool, bool, Index, Index, Index, const T*, Index, const T*, Index,  \
                                     C*, Index, Write);                                                                \
  template void linear_forward<T, C>(const Space&, Matrix<const T>, Matrix<const T>, Matrix<C>, Vector<const T>);      \
  template void linear_backward_input<T, C>(const Space&, Matrix<const T>, Matrix<const T>, Matrix<C>, Write);
FOURFOLD_INSTANTIATE(float, float)
FOURFOLD_INSTANTIATE(double, double)
FOURFOLD_INSTANTIATE(bf16, bf16)
FOURFOLD_INSTANTIATE(bf16, float)
#undef FOURFOLD_INSTANTIATE
template void linear_backward_weight(const Space&, Matrix<const float>, Matrix<const float>, Matrix<float>, Write);
template void linear_backward_weight(const Space&, Matrix<const double>, Matrix<const double>, Matrix<double>, Write);
template void linear_backward_weight(const Space&, Matrix<const bf16>, Matrix<const bf16>, Matrix<float>, Write);

}  // namespace fourfold::kernels
