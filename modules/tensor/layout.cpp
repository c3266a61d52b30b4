#include "tensor/layout.hpp"

#include "base/error.hpp"
#include "kernels/permute.hpp"
#include "tensor/number.hpp"

namespace fourfold {

Index TokenLayout::rows() const {
  Index rows = 0;
  for (const TokenBlock& block : blocks) rows += block.rows();
  return rows;
}

template <class T>
void copy_layout(const TokenLayout& from, kernels::Vector<const T> source, const TokenLayout& to,
                 kernels::Vector<T> target) {
  const Space space;
  Index from_row = 0;
  for (const TokenBlock& a : from.blocks) {
    Index to_row = 0;
    for (const TokenBlock& b : to.blocks) {
      const TokenBlock common{intersect(a.sequences, b.sequences), intersect(a.tokens, b.tokens),
                              intersect(a.cols, b.cols)};
      const auto first_element = [&](const TokenBlock& block, Index first_row, Index width) {
        const Index row = first_row + (common.sequences.begin - block.sequences.begin) * block.tokens.size() +
                          (common.tokens.begin - block.tokens.begin);
        return row * width + (common.cols.begin - block.cols.begin);
      };
      kernels::BoxCopy box;
      box.n0 = common.sequences.size();
      box.n1 = common.tokens.size();
      box.n2 = common.cols.size();
      box.from = first_element(a, from_row, from.width);
      box.from_stride0 = a.tokens.size() * from.width;
      box.from_stride1 = from.width;
      box.to = first_element(b, to_row, to.width);
      box.to_stride0 = b.tokens.size() * to.width;
      box.to_stride1 = to.width;
      kernels::copy_box<T>(space, box, source, target);
      to_row += b.rows();
    }
    from_row += a.rows();
  }
}

template <class T>
LayoutGather<T>::LayoutGather(const Communicator& group, Pool& pool, std::vector<TokenLayout> parts, TokenLayout whole,
                              Summation summation)
    : group_(&group), pool_(&pool), parts_(std::move(parts)), whole_(std::move(whole)), summation_(summation) {
  FOURFOLD_ASSERT(static_cast<int>(parts_.size()) == group.size(), "one layout a rank");
  std::int64_t total = 0;
  for (const TokenLayout& part : parts_) total += sizes_.emplace_back(part.size());
  FOURFOLD_ASSERT(total == whole_.size(), "parts make up the whole");
}

template <class T>
template <class E>
Tensor<E> LayoutGather<T>::reordered(const TokenLayout& from, const Tensor<E>& x, const TokenLayout& to) const {
  Tensor<E> y(*pool_, MemoryTag::activations, to.rows(), to.width);
  copy_layout<E>(from, x.vector(), to, y.vector());
  return y;
}

template <class T>
Tensor<T> LayoutGather<T>::gather(const Tensor<T>& part, CallSite site) const {
  if (group_->size() == 1) return reordered(parts_[0], part, whole_);
  const Tensor<T> parts(*pool_, MemoryTag::buffers, 1, whole_.size());
  Space().fence();
  all_gather<Wire<T>>(*group_, wire<const T>(part.data(), part.size()), wire(parts.vector()), sizes_, site);
  Tensor<T> whole(*pool_, MemoryTag::activations, whole_.rows(), whole_.width);
  Index begin = 0;
  for (const TokenLayout& from : parts_) {
    copy_layout<T>(from, kernels::Vector<const T>(parts.data() + begin, from.size()), whole_, whole.vector());
    begin += from.size();
  }
  return whole;
}

template <class T>
std::pair<Tensor<kernels::Acc<T>>, Pending> LayoutGather<T>::start_scatter_sum(const Tensor<kernels::Acc<T>>& whole,
                                                                               CallSite site) const {
  using A = kernels::Acc<T>;
  if (group_->size() == 1) return {reordered(whole_, whole, parts_[0]), Pending()};
  const Tensor<A> parts(*pool_, MemoryTag::buffers, 1, whole_.size());
  Index begin = 0;
  for (const TokenLayout& to : parts_) {
    copy_layout<A>(whole_, whole.vector(), to, kernels::Vector<A>(parts.data() + begin, to.size()));
    begin += to.size();
  }
  Tensor<A> part(*pool_, MemoryTag::activations, mine().rows(), mine().width);
  Space().fence();
  auto pending = std::make_shared<Pending>(start_reduce_scatter_sum<A>(
      *group_, wire<const A>(parts.data(), parts.size()), wire(part.vector()), sizes_, summation_, site));
  return {part, Pending([pending, parts] { pending->wait(); })};  // the packed parts live until then
}

template <class T>
Tensor<kernels::Acc<T>> LayoutGather<T>::scatter_sum(const Tensor<kernels::Acc<T>>& whole, CallSite site) const {
  auto [part, pending] = start_scatter_sum(whole, site);
  pending.wait();
  return part;
}

template void copy_layout(const TokenLayout&, kernels::Vector<const float>, const TokenLayout&, kernels::Vector<float>);
template void copy_layout(const TokenLayout&, kernels::Vector<const double>, const TokenLayout&,
                          kernels::Vector<double>);
template void copy_layout(const TokenLayout&, kernels::Vector<const kernels::bf16>, const TokenLayout&,
                          kernels::Vector<kernels::bf16>);
template class LayoutGather<float>;
template class LayoutGather<double>;
template class LayoutGather<kernels::bf16>;

}  // namespace fourfold
