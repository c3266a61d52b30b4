// Sums gradients over ranks: the one place where it happens.
//
// Each reduction group's flat buffer is cut into buckets of a fixed number of bytes; the sums of all buckets of all
// groups are started in one order on every rank, then waited for. In deterministic mode bucket sizes change no bit.
#pragma once

#include <cstdint>

#include "base/snap.hpp"
#include "comm/grid_comms.hpp"
#include "deck/deck.hpp"
#include "tensor/param.hpp"

namespace fourfold {

inline constexpr std::int64_t kGradientBucketBytes = std::int64_t{4} << 20;

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
