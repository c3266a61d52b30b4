#include "grid/partition.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace fourfold {

namespace {

std::int64_t product(const std::vector<std::int64_t>& shape) {
  std::int64_t elements = 1;
  for (const std::int64_t length : shape) elements *= length;
  return elements;
}

}  // namespace

Range part(std::int64_t length, std::int64_t parts, std::int64_t index) {
  FOURFOLD_ASSERT(length >= 0, "a length is cut");
  FOURFOLD_ASSERT(parts >= 1 && index >= 0 && index < parts, "part numbers run from 0 to parts - 1");
  const std::int64_t quotient = length / parts;
  const std::int64_t longer = length % parts;  // so many parts have one more
  const std::int64_t begin = index * quotient + std::min(index, longer);
  return {begin, begin + quotient + (index < longer ? 1 : 0)};
}

Range intersect(Range a, Range b) {
  const std::int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

std::int64_t box_size(const Box& box) {
  std::int64_t elements = 1;
  for (const Range& range : box) elements *= range.size();
  return elements;
}

Box whole_box(const std::vector<std::int64_t>& shape) {
  Box box;
  box.reserve(shape.size());
  for (const std::int64_t length : shape) box.push_back({0, length});
  return box;
}

Box intersect(const Box& a, const Box& b) {
  FOURFOLD_ASSERT(a.size() == b.size(), "boxes of one tensor have the same dims");
  Box common;
  common.reserve(a.size());
  for (std::size_t dim = 0; dim < a.size(); ++dim) common.push_back(intersect(a[dim], b[dim]));
  return common;
}

std::int64_t Shard::global_size() const {
  return product(shape);
}

std::int64_t Shard::global_index(std::int64_t i) const {
  FOURFOLD_ASSERT(i >= 0 && i < size(), "a local element of the shard");
  std::int64_t rest = flat.begin + i;
  std::int64_t index = 0;
  std::int64_t stride = 1;
  for (std::size_t dim = shape.size(); dim-- > 0;) {
    const std::int64_t length = box[dim].size();
    index += (box[dim].begin + rest % length) * stride;
    rest /= length;
    stride *= shape[dim];
  }
  return index;
}

Shard whole_shard(const std::vector<std::int64_t>& shape) {
  return {shape, whole_box(shape), {0, product(shape)}};
}

}  // namespace fourfold
