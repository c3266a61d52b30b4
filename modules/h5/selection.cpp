#include "h5/selection.hpp"

#include "base/error.hpp"

namespace fourfold::h5 {

namespace {

class Splitter {
 public:
  explicit Splitter(const Box& box) : box_(box), strides_(box.size(), 1) {
    for (std::size_t dim = box.size(); dim-- > 1;) strides_[dim - 1] = strides_[dim] * box[dim].size();
  }

  // The elements [begin, end) of the sub-box where the dims before `dim` are fixed by `fixed`, counted inside it.
  void split(std::size_t dim, Box fixed, std::int64_t begin, std::int64_t end) {
    if (begin >= end) return;
    if (dim == box_.size()) {
      boxes_.push_back(std::move(fixed));
      return;
    }
    const std::int64_t stride = strides_[dim];
    const std::int64_t first = begin / stride;
    const std::int64_t last = end / stride;  // the first slice that is not whole, if end cuts one
    if (end <= (first + 1) * stride && end - begin < stride) {
      split(dim + 1, slice(fixed, dim, first), begin - first * stride, end - first * stride);
      return;
    }
    std::int64_t whole = first;
    if (begin > first * stride) {
      split(dim + 1, slice(fixed, dim, first), begin - first * stride, stride);
      ++whole;
    }
    if (whole < last) {
      Box middle = fixed;
      middle.push_back({box_[dim].begin + whole, box_[dim].begin + last});
      for (std::size_t inner = dim + 1; inner < box_.size(); ++inner) middle.push_back(box_[inner]);
      boxes_.push_back(std::move(middle));
    }
    split(dim + 1, slice(fixed, dim, last), 0, end - last * stride);
  }

  std::vector<Box> take() { return std::move(boxes_); }

 private:
  Box slice(const Box& fixed, std::size_t dim, std::int64_t index) const {
    Box box = fixed;
    box.push_back({box_[dim].begin + index, box_[dim].begin + index + 1});
    return box;
  }

  const Box& box_;
  std::vector<std::int64_t> strides_;
  std::vector<Box> boxes_;
};

}  // namespace

std::vector<Box> boxes_of(const Shard& shard, Range local) {
  FOURFOLD_ASSERT(local.begin >= 0 && local.end <= shard.size(), "a part of what the shard holds");
  if (local.empty()) return {};
  Splitter splitter(shard.box);
  splitter.split(0, {}, shard.flat.begin + local.begin, shard.flat.begin + local.end);
  return splitter.take();
}

}  // namespace fourfold::h5
