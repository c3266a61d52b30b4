// The elements of a shard as stretches of the whole tensor, and so of a file that holds it. Arithmetic only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "grid/partition.hpp"

namespace fourfold::checkpoint {

// Calls one(local, global, length) for the runs of local elements that are consecutive in the whole tensor.
template <class One>
void for_each_run(const Shard& shard, Range local, One&& one) {
  // Elements that stay consecutive: the last dim of the box, times outer dims while the inner ones are whole.
  std::int64_t unit = 1;
  for (std::size_t dim = shard.shape.size(); dim-- > 0;) {
    unit *= shard.box[dim].size();
    if (shard.box[dim].size() != shard.shape[dim]) break;
  }
  for (std::int64_t begin = local.begin; begin < local.end;) {
    const std::int64_t flat = shard.flat.begin + begin;
    const std::int64_t length = std::min(local.end - begin, unit - flat % unit);
    one(begin, shard.global_index(begin), length);
    begin += length;
  }
}

}  // namespace fourfold::checkpoint
