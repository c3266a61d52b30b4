// Sums gradients over ranks: the one place where it happens.
//
// Each reduction group's flat buffer is cut into buckets of a fixed number of bytes; the sums of all buckets of all
// groups are started in one order on every rank, then waited for. In deterministic mode bucket sizes change no bit.
#pragma once

#include <cstdint>

#include "comm/grid_comms.hpp"
#include "deck/deck.hpp"
#include "tensor/param.hpp"

namespace fourfold {

inline constexpr std::int64_t kGradientBucketBytes = std::int64_t{4} << 20;

// The dyadic deck (numerics.snap: bits of weights and activations): a parameter's gradient is rounded to four bits
// more, once, after all its sums. Before that it is a sum of products of a gradient and an activation.
constexpr int snap_gradient_bits(int snap) {
  return snap + 4;
}
constexpr int snap_product_bits(int snap) {
  return 2 * snap + 4;
}
// A sum whose absolute values stay below 2^52 units of 2^-bits is exact in any order.
constexpr double exact_limit(int bits) {
  return 0x1.0p52 / static_cast<double>(std::int64_t{1} << bits);
}

template <class T>
class Reducer {
 public:
  // Keeps references to `comms` and `store`.
  Reducer(const NumericsDeck& numerics, const GridComms& comms, ParamStore<T>& store,
          std::int64_t bucket_bytes = kGradientBucketBytes);

  // Every Param's grad becomes the sum over the ranks of its axes. Collective over the grid. Errors: fail_all (error)
  // when a snapped run leaves the range in which its sums are exact.
  void reduce();

 private:
  void check_range() const;

  NumericsDeck numerics_;
  const GridComms& comms_;
  ParamStore<T>& store_;
  std::int64_t bucket_elements_;
};

}  // namespace fourfold
