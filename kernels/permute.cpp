#include "kernels/permute.hpp"

#include <utility>

#include "kernels/stream.hpp"

namespace fourfold::kernels {

namespace {

// Shorter runs would leave cache lines half written.
constexpr Index kLongRun = 256;

// Rows in the order in which they lie in the source, which is read ahead; the rows of a box are disjoint.
BoxCopy in_source_order(const BoxCopy& box) {
  if (box.from_stride0 >= box.from_stride1) return box;
  BoxCopy turned = box;
  std::swap(turned.n0, turned.n1);
  std::swap(turned.from_stride0, turned.from_stride1);
  std::swap(turned.to_stride0, turned.to_stride1);
  return turned;
}

template <class T, bool kAdd>
void move_box(const char* label, const Space& space, const BoxCopy& box, Vector<const T> source, Vector<T> target) {
  if (box.n0 <= 0 || box.n1 <= 0 || box.n2 <= 0) return;
  const T* from = source.data();
  T* to = target.data();
  const BoxCopy b = in_source_order(box);
  const bool around =
      !kAdd && b.n2 * static_cast<Index>(sizeof(T)) >= kLongRun && goes_around_caches<T>(to, b.n0 * b.n1 * b.n2, from);
  Kokkos::parallel_for(
      label, Range1(space, 0, b.n0 * b.n1), KOKKOS_LAMBDA(Index row) {
        const Index i = row / b.n1;
        const Index j = row % b.n1;
        const T* source_row = from + b.from + i * b.from_stride0 + j * b.from_stride1;
        T* target_row = to + b.to + i * b.to_stride0 + j * b.to_stride1;
        const bool past_caches = around;  // nvcc captures nothing first inside an if constexpr
        if constexpr (kAdd) {
          for (Index k = 0; k < b.n2; ++k) target_row[k] = target_row[k] + source_row[k];
        } else {
          copy_run(past_caches, b.n2, source_row, target_row);
        }
      });
  finish_stores_around_caches(around);
}

}  // namespace

template <class T>
void copy_box(const Space& space, const BoxCopy& box, Vector<const T> source, Vector<T> target) {
  move_box<T, false>("copy_box", space, box, source, target);
}

template <class T>
void add_box(const Space& space, const BoxCopy& box, Vector<const T> source, Vector<T> target) {
  move_box<T, true>("add_box", space, box, source, target);
}

template void copy_box(const Space&, const BoxCopy&, Vector<const float>, Vector<float>);
template void copy_box(const Space&, const BoxCopy&, Vector<const double>, Vector<double>);
template void copy_box(const Space&, const BoxCopy&, Vector<const bf16>, Vector<bf16>);
template void copy_box(const Space&, const BoxCopy&, Vector<const std::int32_t>, Vector<std::int32_t>);
template void add_box(const Space&, const BoxCopy&, Vector<const float>, Vector<float>);
template void add_box(const Space&, const BoxCopy&, Vector<const double>, Vector<double>);
template void add_box(const Space&, const BoxCopy&, Vector<const bf16>, Vector<bf16>);

}  // namespace fourfold::kernels
