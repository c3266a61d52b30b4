#include "kernels/bias.hpp"

#include "kernels/columns.hpp"

namespace fourfold::kernels {

template <class T, class Y>
void bias_forward(const Space& space, Vector<const T> bias, Matrix<Y> y) {
  const Index columns = y.extent(1);
  Kokkos::parallel_for(
      "bias_forward", Range1(space, 0, y.extent(0)), KOKKOS_LAMBDA(const Index r) {
        const T* b = bias.data();
        Y* out = y.data() + r * y.stride(0);
        for (Index j = 0; j < columns; ++j) out[j] = out[j] + b[j];
      });
}

template <class T>
void bias_backward(const Space& space, Matrix<const T> dy, Vector<Acc<T>> dbias, Write write) {
  const Index rows = dy.extent(0);
  const Index columns = dbias.extent(0);
  const Index width = columns_per_task(space, columns);
  const bool add = write == Write::add;
  Kokkos::parallel_for(
      "bias_backward", Range1(space, 0, (columns + width - 1) / width), KOKKOS_LAMBDA(const Index task) {
        const Index first = task * width;
        const Index n = columns - first < width ? columns - first : width;
        Acc<T> sum[kMaxColumns];
        for (Index j = 0; j < n; ++j) sum[j] = Acc<T>(0);
        for (Index r = 0; r < rows; ++r) {
          const T* row = dy.data() + r * dy.stride(0) + first;
          for (Index j = 0; j < n; ++j) sum[j] += row[j];
        }
        Acc<T>* out = dbias.data() + first;
        for (Index j = 0; j < n; ++j) out[j] = add ? out[j] + sum[j] : sum[j];
      });
}

#define FOURFOLD_INSTANTIATE(T)                                            \
  template void bias_forward<T>(const Space&, Vector<const T>, Matrix<T>); \
  template void bias_backward<T>(const Space&, Matrix<const T>, Vector<Acc<T>>, Write);
FOURFOLD_INSTANTIATE(float)
FOURFOLD_INSTANTIATE(double)
FOURFOLD_INSTANTIATE(bf16)
template void bias_forward<bf16, float>(const Space&, Vector<const bf16>, Matrix<float>);
#undef FOURFOLD_INSTANTIATE

}  // namespace fourfold::kernels
