#include "layers/exact.hpp"

#include "base/error.hpp"
#include "base/snap.hpp"
#include "kernels/vector.hpp"

namespace fourfold {

template <class T>
void check_exact_sum(kernels::Vector<const T> a, kernels::Vector<const T> b, kernels::Index terms, int bits,
                     int ranks) {
  const kernels::Space space;
  const double largest = kernels::max_abs<T>(space, a) * kernels::max_abs<T>(space, b);
  if (largest * static_cast<double>(terms) * ranks >= exact_limit(bits)) {
    fail_one(ExitCode::error,
             "numerics.snap: the sum of a product may leave the range in which fp64 is exact (2^52 units); use fewer "
             "steps, a smaller rate or fewer non-zeros");
  }
}

template void check_exact_sum(kernels::Vector<const float>, kernels::Vector<const float>, kernels::Index, int, int);
template void check_exact_sum(kernels::Vector<const double>, kernels::Vector<const double>, kernels::Index, int, int);
template void check_exact_sum(kernels::Vector<const kernels::bf16>, kernels::Vector<const kernels::bf16>,
                              kernels::Index, int, int);

}  // namespace fourfold
