// How the gradients of each reduction group are summed, and which part of its flat buffers this rank updates.
//
//   algorithm   shard          reduce-scatter over        all-reduce over        gathered again
//   flat        none           -                          the group              -
//   flat        data           the group                  -                      values
//   flat        data_partial   blocks of n neighbours     the same place of all  values
//   torus2d     none, data     y, then x                  -                      gradients, values
//   two_level   none           each node's ranks          the same place of all  gradients
//   two_level   data           each node's ranks, nodes   -                      values
//
// A buffer of P elements is padded to L x ceil(P/L), L the product of the levels' ranks: parts are equal, whatever the
// buckets. Xu et al., "Automatic cross-replica sharding of weight update" (2020); Kumar et al., "Exploring the limits
// of concurrency in ML training on Google TPUs" (2021), for torus2d.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "comm/collectives.hpp"
#include "comm/grid_comms.hpp"
#include "deck/deck.hpp"
#include "tensor/param.hpp"

namespace fourfold {

struct GroupPlan {
  std::vector<const Communicator*> levels;  // reduce-scatter over each in turn, on the part that the last one left
  std::vector<Range> blocks;                // what enters each level, and what leaves the last; [0, padded) first
  const Communicator* sum = nullptr;        // then the part is summed over these; nullptr: over nobody
  bool sharded = false;                     // values are gathered after the update; else gradients before it
  Range mine;                               // what this rank updates and keeps moments for; may reach into the padding
  const Communicator* copies = nullptr;  // the ranks with the same part, this one among them; nullptr: this one alone

  // The first of the ranks with this part counts it in norms.
  bool counts() const { return copies == nullptr || copies->rank() == 0; }
};

class UpdatePlan {
 public:
  // Collective over the grid's groups. `store` is allocated with buffers padded to a multiple of update_parts().
  // Errors: fail_all (input) where two_level meets nodes that hold unequal numbers of a group's ranks.
  template <class T>
  UpdatePlan(const Deck& deck, const GridComms& comms, const ParamStore<T>& store);

  // In the order of ParamStore::groups().
  const GroupPlan& group(std::size_t index) const { return groups_[index]; }

 private:
  void add(const Deck& deck, const GridComms& comms, const GroupKey& key, Index padded);
  const Communicator* made(const Communicator& parent, const std::vector<int>& ranks, const std::string& name);

  std::deque<Communicator> made_;  // parts of reduction groups; addresses stay
  std::vector<GroupPlan> groups_;
};

// In place: the levels' reduce-scatters of `buffer`, bucket by bucket of about `bucket_elements`; then the sum of this
// rank's part, under way on return. The rest of the buffer keeps partial sums. `overlap`: several buckets under way at
// once. Bucket sizes change no bit of a deterministic sum.
template <class A>
Pending start_reduce_to_part(const GroupPlan& plan, std::span<A> buffer, std::int64_t bucket_elements, bool overlap,
                             Summation summation);

// In place: every rank's part to all ranks, level by level. `buffer` stays valid until the Pending is complete.
template <class A>
Pending start_gather_parts(const GroupPlan& plan, std::span<A> buffer, Phase phase);

}  // namespace fourfold
