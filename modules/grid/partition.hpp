// How a length is cut into parts, and the boxes this makes of a tensor. Arithmetic only.
#pragma once

#include <cstdint>
#include <vector>

namespace fourfold {

// Half-open interval [begin, end).
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
  bool empty() const { return end <= begin; }
  bool operator==(const Range&) const = default;
};

// Part `index` of [0, length) cut into `parts` by quotient and remainder: the first length % parts are longer by one;
// parts beyond the length are empty. Errors: assertion on parts < 1, index outside [0, parts), length < 0.
Range part(std::int64_t length, std::int64_t parts, std::int64_t index);

Range intersect(Range a, Range b);  // empty results have begin == end

// A box of a tensor: one range a dim. A scalar has no dims and one element.
using Box = std::vector<Range>;
std::int64_t box_size(const Box& box);
Box whole_box(const std::vector<std::int64_t>& shape);
Box intersect(const Box& a, const Box& b);

// What one rank holds of a logical tensor: the elements [flat.begin, flat.end) of `box`, counted row-major inside it.
// Without a depth axis (or a sharded update) flat is [0, box_size(box)).
struct Shard {
  std::vector<std::int64_t> shape;  // of the logical tensor, never padded
  Box box;
  Range flat;

  std::int64_t size() const { return flat.size(); }
  std::int64_t global_size() const;
  // The row-major index in the logical tensor of local element i (0 <= i < size()).
  std::int64_t global_index(std::int64_t i) const;
};
Shard whole_shard(const std::vector<std::int64_t>& shape);

}  // namespace fourfold
