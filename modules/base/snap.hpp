// The dyadic deck (numerics.snap: bits after the point of weights and activations): rounded so that every sum is exact
// in any order.
#pragma once

#include <cstdint>

namespace fourfold {

// A gradient is rounded to four bits more, once, after all its sums. Before that it is a sum of products of a gradient
// and an activation.
constexpr int snap_gradient_bits(int snap) {
  return snap + 4;
}
constexpr int snap_product_bits(int snap) {
  return snap + snap_gradient_bits(snap);
}
// A sum whose absolute values stay below 2^52 units of 2^-bits is exact in any order.
constexpr double exact_limit(int bits) {
  return 0x1.0p52 / static_cast<double>(std::int64_t{1} << bits);
}

}  // namespace fourfold
