// Which pairs an expert takes where its capacity is limited.
#pragma once

#include "layers/moe/options.hpp"
#include "layers/unit.hpp"

namespace fourfold {

// ceil(factor x tokens x top_k / experts).
Index expert_capacity(double factor, Index tokens, Index top_k, Index experts);

// Marks the pairs beyond it in `choice` (tokens x k; as their complement). ids: numbers of this rank's tokens; scores:
// tokens x E. Each expert keeps the first pairs of a scope by (token, slot), or those of the highest scores, so that
// what is kept is the same on every grid. Decided on hosts: the scope's ranks tell each other all their choices.
template <class T>
void drop_beyond_capacity(const LayerContext<T>& context, const MoeOptions& options, const PlannedPass<T>& pass,
                          const Tensor<std::int64_t>& ids, const Tensor<kernels::Acc<T>>& scores,
                          const Tensor<std::int32_t>& choice);

}  // namespace fourfold
