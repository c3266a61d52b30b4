#include <stdexcept>
#include <type_traits>

#include "kernels/bias.hpp"
#include "kernels/gemm.hpp"
#include "kernels/gemm_device.hpp"
#include "kernels/library_product.hpp"

namespace fourfold::kernels {

// Products run on the device; there are no threads to count.
void set_product_threads(int threads) {
  if (threads < 1) throw std::invalid_argument("set_product_threads: the count must be 1 or more");
}

template <class T, class C>
bool library_takes(const Operands<T, C>& /*p*/) {
  return true;
}

template <class T, class C>
void library_product(const Space& space, const Operands<T, C>& p) {
  constexpr bool kFusesBias = std::is_same_v<T, C>;  // cuBLASLt wants a bias of C's type
  const bool fused = kFusesBias && p.bias != nullptr;
  DeviceProduct product;
  product.transpose_a = p.transpose_a;
  product.transpose_b = p.transpose_b;
  product.m = p.m;
  product.n = p.n;
  product.k = p.k;
  product.lda = p.lda;
  product.ldb = p.ldb;
  product.ldc = p.ldc;
  product.add = p.add;
  product.epilogue = fused ? Epilogue::bias : Epilogue::none;
  const C* bias = nullptr;
  if constexpr (kFusesBias) bias = p.bias;
  device_product(product, p.a, p.b, p.c, bias, space.cuda_stream());
  if (p.bias != nullptr && !fused) {
    bias_forward<T, C>(space, Vector<const T>(p.bias, p.n), Matrix<C>(p.c, p.m, p.n));
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
