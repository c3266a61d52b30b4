// An all-to-all in two steps, for ranks on nodes (as HALO of Piper, Zhang et al. 2025): a message between two nodes
// carries what all ranks of the one have for one rank of the other.
#pragma once

#include <span>
#include <vector>

#include "comm/collectives.hpp"
#include "tensor/tensor.hpp"

namespace fourfold {

// sizes[s x ranks + r]: elements from rank s to rank r of the group, known to all. send: this rank's, receiver by
// receiver; receive: source by source. Inside its node a rank hands what is for rank number i of any node to rank
// number i mod g of its own g; such ranks then exchange between nodes, each message on its way as soon as its pieces
// are here.
template <class E>
void node_exchange(const Communicator& group, Pool& pool, std::span<const E> send, std::span<E> receive,
                   const std::vector<std::int64_t>& sizes, Phase phase);

}  // namespace fourfold
