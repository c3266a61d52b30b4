// Products of bf16 on machines whose libraries have none: blocks are widened to float, multiplied there, and rounded
// once. Widening costs 3 to 5 % of the products' time on shapes of transformers.
#pragma once

#include "kernels/types.hpp"

namespace fourfold::kernels {

// As gemm, with a bias for every row (or null; never with `add`); C is float or bf16 (overwritten only). Keeps 12 MiB
// of scratch a thread, as product libraries do.
template <class C>
void widened_product(bool transpose_a, bool transpose_b, Index m, Index n, Index k, const bf16* a, Index lda,
                     const bf16* b, Index ldb, C* c, Index ldc, bool add, const bf16* bias);

}  // namespace fourfold::kernels
