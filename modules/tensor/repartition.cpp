#include "tensor/repartition.hpp"

#include <algorithm>
#include <map>

#include "base/error.hpp"
#include "kernels/permute.hpp"
#include "tensor/number.hpp"

namespace fourfold {

namespace {

// Row-major strides of a box's elements.
std::vector<Index> strides_of(const Box& box) {
  std::vector<Index> strides(box.size(), 1);
  for (std::size_t d = box.size(); d-- > 1;) strides[d - 1] = strides[d] * box[d].size();
  return strides;
}

// target (of box `to`) = or += source (of box `from`) on `region`, which both contain.
template <class T>
void move_region(const Box& region, const Box& from, kernels::Vector<const T> source, const Box& to,
                 kernels::Vector<T> target, bool add) {
  if (box_size(region) == 0) return;
  const std::vector<Index> from_strides = strides_of(from);
  const std::vector<Index> to_strides = strides_of(to);
  const std::size_t dims = region.size();
  const std::size_t outer = dims > 3 ? dims - 3 : 0;  // dims beyond the three that a kernel takes
  std::vector<Index> at(outer, 0);
  while (true) {
    kernels::BoxCopy box;
    box.n0 = box.n1 = box.n2 = 1;
    for (std::size_t d = 0; d < dims; ++d) {
      const Index offset = d < outer ? at[d] : 0;
      box.from += (region[d].begin + offset - from[d].begin) * from_strides[d];
      box.to += (region[d].begin + offset - to[d].begin) * to_strides[d];
    }
    if (dims >= 1) box.n2 = region[dims - 1].size();
    if (dims >= 2) {
      box.n1 = region[dims - 2].size();
      box.from_stride1 = from_strides[dims - 2];
      box.to_stride1 = to_strides[dims - 2];
    }
    if (dims >= 3) {
      box.n0 = region[dims - 3].size();
      box.from_stride0 = from_strides[dims - 3];
      box.to_stride0 = to_strides[dims - 3];
    }
    if (add) {
      kernels::add_box<T>(Space(), box, source, target);
    } else {
      kernels::copy_box<T>(Space(), box, source, target);
    }
    std::size_t d = outer;
    while (d > 0 && ++at[d - 1] == region[d - 1].size()) at[--d] = 0;
    if (d == 0) return;
  }
}

}  // namespace

template <class T>
Repartition<T>::Repartition(const Communicator& group, Pool& pool, std::vector<Box> source, std::vector<Box> target)
    : group_(&group), pool_(&pool), source_(std::move(source)), target_(std::move(target)) {
  const std::size_t ranks = static_cast<std::size_t>(group.size());
  FOURFOLD_ASSERT(source_.size() == ranks && target_.size() == ranks, "one source and one target box a rank");
  std::map<std::vector<std::pair<Index, Index>>, std::vector<int>> holders;
  for (std::size_t r = 0; r < ranks; ++r) {
    if (box_size(source_[r]) == 0) continue;
    std::vector<std::pair<Index, Index>> key;
    for (const Range& range : source_[r]) key.emplace_back(range.begin, range.end);
    holders[key].push_back(static_cast<int>(r));
  }
  const int me = group.rank();
  for (std::size_t t = 0; t < ranks; ++t) {
    Index covered = 0;
    for (const auto& [key, ranks_of] : holders) {
      const Box common = intersect(source_[static_cast<std::size_t>(ranks_of.front())], target_[t]);
      if (box_size(common) == 0) continue;
      covered += box_size(common);
      const bool at_home = std::find(ranks_of.begin(), ranks_of.end(), static_cast<int>(t)) != ranks_of.end();
      const int sender = at_home ? static_cast<int>(t) : ranks_of[t % ranks_of.size()];
      if (sender == me) forward_send_.push_back({static_cast<int>(t), common});
      if (static_cast<int>(t) == me) forward_receive_.push_back({sender, common});
      for (const int holder : ranks_of) {
        if (static_cast<int>(t) == me) adjoint_send_.push_back({holder, common});
        if (holder == me) adjoint_receive_.push_back({static_cast<int>(t), common});
      }
    }
    FOURFOLD_ASSERT(covered == box_size(target_[t]), "source boxes are equal or disjoint and cover every target");
  }
  const auto by_peer = [](const Piece& a, const Piece& b) { return a.peer < b.peer; };
  for (auto* pieces : {&forward_send_, &forward_receive_, &adjoint_send_, &adjoint_receive_}) {
    std::stable_sort(pieces->begin(), pieces->end(), by_peer);
  }
}

// Packs, exchanges; returns what came, piece by piece.
template <class T>
Tensor<T> Repartition<T>::exchange(const std::vector<Piece>& send, const std::vector<Piece>& receive, const Box& held,
                                   kernels::Vector<const T> from, CallSite site) const {
  const std::size_t ranks = static_cast<std::size_t>(group_->size());
  std::vector<std::int64_t> send_sizes(ranks, 0), receive_sizes(ranks, 0);
  Index sent = 0, received = 0;
  for (const Piece& piece : send) {
    send_sizes[static_cast<std::size_t>(piece.peer)] += box_size(piece.box);
    sent += box_size(piece.box);
  }
  for (const Piece& piece : receive) {
    receive_sizes[static_cast<std::size_t>(piece.peer)] += box_size(piece.box);
    received += box_size(piece.box);
  }
  const Tensor<T> packed(*pool_, MemoryTag::buffers, 1, sent);
  Tensor<T> arrived(*pool_, MemoryTag::buffers, 1, received);
  Index at = 0;
  for (const Piece& piece : send) {
    const Index size = box_size(piece.box);
    move_region<T>(piece.box, held, from, piece.box, kernels::Vector<T>(packed.data() + at, size), false);
    at += size;
  }
  Space().fence();
  all_to_all<Wire<T>>(*group_, wire<const T>(packed.data(), sent), send_sizes, wire(arrived.data(), received),
                      receive_sizes, site);
  return arrived;
}

template <class T>
void Repartition<T>::forward(kernels::Vector<const T> mine, kernels::Vector<T> out, CallSite site) const {
  const Tensor<T> arrived = exchange(forward_send_, forward_receive_, my_source(), mine, site);
  Index at = 0;
  for (const Piece& piece : forward_receive_) {
    const Index size = box_size(piece.box);
    move_region<T>(piece.box, piece.box, kernels::Vector<const T>(arrived.data() + at, size), my_target(), out, false);
    at += size;
  }
}

template <class T>
void Repartition<T>::adjoint(kernels::Vector<const T> dout, kernels::Vector<T> dmine, CallSite site) const {
  const Tensor<T> arrived = exchange(adjoint_send_, adjoint_receive_, my_target(), dout, site);
  Kokkos::deep_copy(dmine, T(0));
  Index at = 0;
  for (const Piece& piece : adjoint_receive_) {
    const Index size = box_size(piece.box);
    move_region<T>(piece.box, piece.box, kernels::Vector<const T>(arrived.data() + at, size), my_source(), dmine, true);
    at += size;
  }
}

std::vector<Box> cut_along(const std::vector<std::int64_t>& shape, std::size_t dim, int parts) {
  return halo_windows(shape, dim, parts, 0, 0);
}

std::vector<Box> halo_windows(const std::vector<std::int64_t>& shape, std::size_t dim, int parts, Index left,
                              Index right) {
  std::vector<Box> windows;
  for (int r = 0; r < parts; ++r) {
    Box box = whole_box(shape);
    Range mine = part(shape[dim], parts, r);
    if (!mine.empty()) {
      mine.begin = std::max<Index>(0, mine.begin - left);
      mine.end = std::min<Index>(shape[dim], mine.end + right);
    }
    box[dim] = mine;
    windows.push_back(box);
  }
  return windows;
}

template class Repartition<float>;
template class Repartition<double>;
template class Repartition<kernels::bf16>;

}  // namespace fourfold
