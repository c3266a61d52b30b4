#include "kernels/vector.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/lanes.hpp"
#include "kernels/stream.hpp"

namespace fourfold::kernels {

namespace {

constexpr Index kBlock = 4096;

Index block_count(Index n) {
  return (n + kBlock - 1) / kBlock;
}

struct Identity {
  KOKKOS_FORCEINLINE_FUNCTION double operator()(double x) const { return x; }
};
struct Square {
  KOKKOS_FORCEINLINE_FUNCTION double operator()(double x) const { return x * x; }
};

// Sums of blocks [first_block, first_block + value_count) of x, each in its own slot of an array reduction: joining
// adds only zeros to a slot, which is exact, so the order in which a back end joins does not matter.
template <class T, class Map>
struct BlockSums {
  using value_type = double[];
  static constexpr unsigned kCount = 64;
  unsigned value_count = kCount;
  Vector<const T> x;
  Index first_block = 0;
  Map map;

  KOKKOS_FUNCTION void operator()(const Index block, double sums[]) const {
    const Index begin = (first_block + block) * kBlock;
    const Index n = static_cast<Index>(x.extent(0)) - begin < kBlock ? static_cast<Index>(x.extent(0)) - begin : kBlock;
    const T* values = x.data() + begin;
    sums[block] +=
        lane_sum<double>(n, [&](Index j) { return map(static_cast<double>(static_cast<Acc<T>>(values[j]))); });
  }
};

template <class Map, class T>
double blocked_sum(const char* label, const Space& space, Vector<const T> x, Map map) {
  using Sums = BlockSums<T, Map>;
  const Index blocks = block_count(x.extent(0));
  double total = 0.0;
  for (Index first = 0; first < blocks; first += Sums::kCount) {
    const Index count = std::min<Index>(Sums::kCount, blocks - first);
    double sums[Sums::kCount];
    Kokkos::parallel_reduce(label, Range1(space, 0, count), Sums{Sums::kCount, x, first, map}, sums);
    for (Index block = 0; block < count; ++block) total += sums[block];
  }
  return total;
}

}  // namespace

template <class T>
void fill(const Space& space, T value, Vector<T> x) {
  Kokkos::parallel_for(
      "fill", Range1(space, 0, x.extent(0)), KOKKOS_LAMBDA(const Index i) { x(i) = value; });
}

template <class T>
void copy(const Space& space, Vector<const T> x, Vector<T> y) {
  write_elements(
      "copy", space, y.extent(0), x.data(), y.data(), KOKKOS_LAMBDA(const Index i) { return x(i); });
}

template <class T, class Y>
void add(const Space& space, Vector<const T> x, Vector<Y> y) {
  Kokkos::parallel_for(
      "add", Range1(space, 0, y.extent(0)), KOKKOS_LAMBDA(const Index i) { y(i) = y(i) + x(i); });
}

template <class T>
void scale(const Space& space, double factor, Vector<T> x) {
  const Acc<T> f = static_cast<Acc<T>>(factor);
  Kokkos::parallel_for(
      "scale", Range1(space, 0, x.extent(0)), KOKKOS_LAMBDA(const Index i) { x(i) = x(i) * f; });
}

template <class T>
double sum_squares(const Space& space, Vector<const T> x) {
  return blocked_sum("sum_squares", space, x, Square{});
}

template <class T>
double sum(const Space& space, Vector<const T> x) {
  return blocked_sum("sum", space, x, Identity{});
}

template <class T>
double max_abs(const Space& space, Vector<const T> x) {
  const Index n = x.extent(0);
  double result = 0.0;
  Kokkos::parallel_reduce(
      "max_abs", Range1(space, 0, block_count(n)),
      KOKKOS_LAMBDA(const Index block, double& largest) {
        const T* values = x.data() + block * kBlock;
        const Index count = n - block * kBlock < kBlock ? n - block * kBlock : kBlock;
        const double here = lane_max<Acc<T>>(count, [=](Index j) {
          const Acc<T> value = values[j];
          return value < Acc<T>(0) ? -value : value;
        });
        if (here > largest) largest = here;
      },
      Kokkos::Max<double>(result));
  return std::max(result, 0.0);  // the maximum's identity stands where x is empty
}

template <class T>
Index count_nonfinite(const Space& space, Vector<const T> x) {
  const Index n = x.extent(0);
  Index result = 0;
  Kokkos::parallel_reduce(
      "count_nonfinite", Range1(space, 0, block_count(n)),
      KOKKOS_LAMBDA(const Index block, Index& total) {
        const T* values = x.data() + block * kBlock;
        const Index count = n - block * kBlock < kBlock ? n - block * kBlock : kBlock;
        // x - x is 0 for a number and NaN for the rest; a block's count is exact in Acc<T>.
        const auto bad = [=](Index j) {
          const Acc<T> x_j = values[j];
          return x_j - x_j == Acc<T>(0) ? Acc<T>(0) : Acc<T>(1);  // NOLINT(misc-redundant-expression)
        };
        total += static_cast<Index>(lane_sum<Acc<T>>(count, bad));
      },
      result);
  return result;
}

template <class T>
void snap(const Space& space, int bits, Vector<T> x) {
  const Acc<T> up = std::ldexp(Acc<T>(1), bits);
  const Acc<T> down = std::ldexp(Acc<T>(1), -bits);
  Kokkos::parallel_for(
      "snap", Range1(space, 0, x.extent(0)),
      KOKKOS_LAMBDA(const Index i) { x(i) = std::rint(x(i) * up) * down + Acc<T>(0); });
}

template <class T>
void copy_columns(const Space& space, Matrix<const T> src, Index src_col, Index n, Matrix<T> dst, Index dst_col) {
  const Index rows = n == 0 ? 0 : dst.extent(0);
  const bool around = goes_around_caches<T>(dst.data(), rows * n, src.data());
  Kokkos::parallel_for(
      "copy_columns", Range1(space, 0, rows),
      KOKKOS_LAMBDA(const Index r) { copy_run(around, n, &src(r, src_col), &dst(r, dst_col)); });
  finish_stores_around_caches(around);
}

void round_to(const Space& space, Vector<const float> x, Vector<bf16> y) {
  write_elements<bf16>(
      "round_to", space, y.extent(0), nullptr, y.data(), KOKKOS_LAMBDA(const Index i) { return x(i); });
}

#define FOURFOLD_INSTANTIATE(T)                                     \
  template void fill<T>(const Space&, T, Vector<T>);                \
  template void copy<T>(const Space&, Vector<const T>, Vector<T>);  \
  template void add<T>(const Space&, Vector<const T>, Vector<T>);   \
  template void scale<T>(const Space&, double, Vector<T>);          \
  template double sum_squares<T>(const Space&, Vector<const T>);    \
  template double sum<T>(const Space&, Vector<const T>);            \
  template double max_abs<T>(const Space&, Vector<const T>);        \
  template Index count_nonfinite<T>(const Space&, Vector<const T>); \
  template void snap<T>(const Space&, int, Vector<T>);              \
  template void copy_columns<T>(const Space&, Matrix<const T>, Index, Index, Matrix<T>, Index);
FOURFOLD_INSTANTIATE(float)
FOURFOLD_INSTANTIATE(double)
FOURFOLD_INSTANTIATE(bf16)
template void add<bf16, float>(const Space&, Vector<const bf16>, Vector<float>);
#undef FOURFOLD_INSTANTIATE

template void copy<std::int64_t>(const Space&, Vector<const std::int64_t>, Vector<std::int64_t>);

}  // namespace fourfold::kernels
