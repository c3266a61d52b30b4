#include "kernels/embedding.hpp"

#include <cassert>

#include "kernels/columns.hpp"
#include "kernels/stream.hpp"

namespace fourfold::kernels {

template <class T, class Y>
void embedding_forward(const Space& space, Vector<const std::int32_t> ids, Matrix<const T> table, Index first_id,
                       Matrix<Y> y) {
  assert(ids.extent(0) == y.extent(0) && table.extent(1) == y.extent(1));
  const Index held = table.extent(0);
  const Index width = y.extent(1);
  const bool around = goes_around_caches<Y>(y.data(), y.size());
  Kokkos::parallel_for(
      "embedding_forward", Range1(space, 0, y.extent(0)), KOKKOS_LAMBDA(const Index r) {
        const Index id = ids(r) - first_id;
        Y* out = y.data() + r * y.stride(0);
        if (id >= 0 && id < held) {
          copy_run(around, width, table.data() + id * table.stride(0), out);
        } else {
          for (Index j = 0; j < width; ++j) out[j] = Y(0);
        }
      });
  finish_stores_around_caches(around);
}

template <class T>
void embedding_backward(const Space& space, Vector<const std::int32_t> ids, Matrix<const T> dy, Index first_id,
                        Matrix<Acc<T>> dtable) {
  assert(ids.extent(0) == dy.extent(0) && dtable.extent(1) == dy.extent(1));
  const Index rows = dy.extent(0);
  const Index held = dtable.extent(0);
  const Index columns = dtable.extent(1);
  const Index width = columns_per_task(space, columns);
  Kokkos::parallel_for(
      "embedding_backward", Range1(space, 0, (columns + width - 1) / width), KOKKOS_LAMBDA(const Index task) {
        const Index first = task * width;
        const Index n = columns - first < width ? columns - first : width;
        for (Index r = 0; r < rows; ++r) {
          const Index id = ids(r) - first_id;
          if (id < 0 || id >= held) continue;
          const T* row = dy.data() + r * dy.stride(0) + first;
          Acc<T>* sum = dtable.data() + id * dtable.stride(0) + first;
          for (Index j = 0; j < n; ++j) sum[j] += row[j];
        }
      });
}

template <class T>
void position_forward(const Space& space, Matrix<const T> table, const RowPositions& rows, Matrix<T> y) {
  const RowPositions at = rows;
  const Index width = y.extent(1);
  Kokkos::parallel_for(
      "position_forward", Range1(space, 0, y.extent(0)), KOKKOS_LAMBDA(const Index r) {
        const T* row = table.data() + at(r) * table.stride(0);
        T* out = y.data() + r * y.stride(0);
        for (Index j = 0; j < width; ++j) out[j] = out[j] + row[j];
      });
}

template <class T>
void position_backward(const Space& space, Matrix<const T> dy, const RowPositions& place, Matrix<Acc<T>> dtable) {
  const RowPositions at = place;
  assert(dtable.extent(1) == dy.extent(1));
  const Index rows = dy.extent(0);
  const Index columns = dtable.extent(1);
  const Index width = columns_per_task(space, columns);
  Kokkos::parallel_for(
      "position_backward", Range1(space, 0, (columns + width - 1) / width), KOKKOS_LAMBDA(const Index task) {
        const Index first = task * width;
        const Index n = columns - first < width ? columns - first : width;
        for (Index r = 0; r < rows; ++r) {
          const T* row = dy.data() + r * dy.stride(0) + first;
          Acc<T>* sum = dtable.data() + at(r) * dtable.stride(0) + first;
          for (Index j = 0; j < n; ++j) sum[j] += row[j];
        }
      });
}

#define FOURFOLD_INSTANTIATE(T)                                                                                    \
  template void embedding_forward<T>(const Space&, Vector<const std::int32_t>, Matrix<const T>, Index, Matrix<T>); \
  template void embedding_backward<T>(const Space&, Vector<const std::int32_t>, Matrix<const T>, Index,            \
                                      Matrix<Acc<T>>);                                                             \
  template void position_forward<T>(const Space&, Matrix<const T>, const RowPositions&, Matrix<T>);                \
  template void position_backward<T>(const Space&, Matrix<const T>, const RowPositions&, Matrix<Acc<T>>);
FOURFOLD_INSTANTIATE(float)
FOURFOLD_INSTANTIATE(double)
FOURFOLD_INSTANTIATE(bf16)
template void embedding_forward<bf16, float>(const Space&, Vector<const std::int32_t>, Matrix<const bf16>, Index,
                                             Matrix<float>);
#undef FOURFOLD_INSTANTIATE

}  // namespace fourfold::kernels
