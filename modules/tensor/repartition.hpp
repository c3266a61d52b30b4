// Any layout to any layout. One class makes copies, broadcasts, scatters, gathers, all-to-alls, changes of layout and
// halo exchanges: they differ only in the boxes that ranks hold before and after.
//
// forward copies; its adjoint is the same movement back, where contributions to one element are added in ascending rank
// order. Source boxes that are held by several ranks are replicas: one of them sends, all get the adjoint's sum. Only
// the intersections of source and target boxes move; a rank holds its two shards and buffers of what it sends and
// receives.
#pragma once

#include <vector>

#include "comm/collectives.hpp"
#include "grid/partition.hpp"
#include "tensor/tensor.hpp"

namespace fourfold {

template <class T>
class Repartition {
 public:
  // One box a rank of `group` (empty ranges: nothing). Source boxes are equal or disjoint and cover every target box;
  // target boxes may overlap. Errors: assertion on these.
  Repartition(const Communicator& group, Pool& pool, std::vector<Box> source, std::vector<Box> target);

  // mine: the elements of this rank's source box, row-major; out: of its target box (overwritten).
  void forward(kernels::Vector<const T> mine, kernels::Vector<T> out, CallSite site) const;
  // dmine: overwritten with the sum of all that came from this rank's source box.
  void adjoint(kernels::Vector<const T> dout, kernels::Vector<T> dmine, CallSite site) const;

 private:
  struct Piece {
    int peer;
    Box box;  // what goes to or comes from the peer
  };
  const Box& my_source() const { return source_[static_cast<std::size_t>(group_->rank())]; }
  const Box& my_target() const { return target_[static_cast<std::size_t>(group_->rank())]; }
  Tensor<T> exchange(const std::vector<Piece>& send, const std::vector<Piece>& receive, const Box& held,
                     kernels::Vector<const T> from, CallSite site) const;

  const Communicator* group_;
  Pool* pool_;
  std::vector<Box> source_, target_;
  std::vector<Piece> forward_send_, forward_receive_;  // by ascending peer
  std::vector<Piece> adjoint_send_, adjoint_receive_;
};

// The windows of a halo exchange along `dim` of a tensor cut there into the group's parts: each rank's own part and up
// to `left` and `right` elements of its neighbours beyond it.
std::vector<Box> cut_along(const std::vector<std::int64_t>& shape, std::size_t dim, int parts);
std::vector<Box> halo_windows(const std::vector<std::int64_t>& shape, std::size_t dim, int parts, Index left,
                              Index right);

}  // namespace fourfold
