// Cuts of a matrix product for libraries whose sizes are 32-bit.
#pragma once

#include <algorithm>

#include "kernels/types.hpp"

namespace fourfold::kernels {

struct ProductPart {
  Index row, rows;      // of C and op(A)
  Index col, cols;      // of C and op(B)
  Index inner, inners;  // of the sum: parts after the first add to C
};

// Calls body(part) for parts of at most `limit` in each direction that cover m x n x k once; the parts of the sum come
// in ascending order for each part of C.
template <class Body>
void for_each_product_part(Index m, Index n, Index k, Index limit, Body body) {
  for (Index i = 0; i < m; i += limit) {
    for (Index j = 0; j < n; j += limit) {
      for (Index l = 0; l < k; l += limit) {
        body(ProductPart{i, std::min(limit, m - i), j, std::min(limit, n - j), l, std::min(limit, k - l)});
      }
    }
  }
}

}  // namespace fourfold::kernels
