// Sums gradients over ranks: the one place where it happens.
//
// Each reduction group's flat buffer takes the way of its GroupPlan (update_plan.hpp), cut into buckets of a fixed
// number of bytes, in one order on every rank. In deterministic mode neither bucket sizes nor overlap change a bit.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/snap.hpp"
#include "comm/grid_comms.hpp"
#include "deck/deck.hpp"
#include "optim/tied_sum.hpp"
#include "optim/update_plan.hpp"
#include "tensor/param.hpp"

namespace fourfold {

template <class T>
class Reducer {
 public:
  // Keeps references to all but the deck: numerics, comm.bucket_bytes, parallel.overlap. `tied`: of a matrix that this
  // stage and another one of another grid hold, or null.
  Reducer(const Deck& deck, const UpdatePlan& plan, const GridComms& comms, ParamStore<T>& store,
          const TiedSum<T>* tied = nullptr);

  // Every Param's grad becomes the sum over the ranks of its axes; with a sharded update only in this rank's part, and
  // the rest is left with partial sums. Collective over the grid. Errors: fail_all (error)
  // when a snapped run leaves the range in which its sums are exact.
  void reduce() { finish(); }
  // The same in two steps: start(chunk) as soon as a chunk's gradients are complete, on all ranks of its stage;
  // finish() starts what is left, such as what stages sum together, and waits for all.
  void start(int chunk);
  void finish();

 private:
  void start_group(std::size_t group);
  void check_range(const ParamGroup<T>& group);
  std::span<kernels::Acc<T>> buffer(std::size_t group);

  NumericsDeck numerics_;
  const UpdatePlan& plan_;
  const GridComms& comms_;
  ParamStore<T>& store_;
  std::int64_t bucket_elements_;
  bool overlap_;
  const TiedSum<T>* tied_;
  std::vector<std::optional<Pending>> sums_;  // a group's, once it is started
  std::string out_of_range_;                  // the first group of this rank whose sum is not exact
};

}  // namespace fourfold
