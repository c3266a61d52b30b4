// A flat part of a shard as boxes of the logical tensor. Arithmetic only.
#pragma once

#include <vector>

#include "grid/partition.hpp"

namespace fourfold::h5 {

// The local elements [local.begin, local.end) of `shard` as disjoint boxes in global coordinates, at most 2 * dims - 1
// of them, in row-major order. Empty ranges give none; a scalar's element is the box without dims.
// Errors: assertion when `local` is not inside [0, shard.size()).
std::vector<Box> boxes_of(const Shard& shard, Range local);

}  // namespace fourfold::h5
