#include "layers/weight.hpp"

#include "base/error.hpp"
#include "kernels/vector.hpp"

namespace fourfold {

namespace {

Index total_rows(const std::vector<Segment>& segments) {
  Index rows = 0;
  for (const Segment& segment : segments) rows += segment.held.size();
  return rows;
}

}  // namespace

template <class T>
Weight<T>::Weight(const LayerContext<T>& context, std::vector<Segment> segments, Index in_features, Range in_held)
    : context_(context),
      rows_(total_rows(segments)),
      cols_(in_held.size()),
      gather_(context.comms.group(AxisSet{Axis::depth}), rows_ * cols_, context.options.summation) {
  const Range mine = context.part_of(rows_ * cols_, Axis::depth);
  Index begin = 0;  // of the segment in the flattened local matrix
  for (Segment& segment : segments) {
    const Index size = segment.held.size() * cols_;
    const Range flat = intersect(mine, Range{begin, begin + size});
    ParamSpec spec;
    spec.name = segment.name;
    spec.shard = Shard{{segment.features, in_features},
                       {segment.held, in_held},
                       flat.empty() ? Range{0, 0} : Range{flat.begin - begin, flat.end - begin}};
    spec.sum_over = GroupKey({Axis::data}, segment.sharers, segment.tied_stage);
    spec.owner = segment.owner;
    spec.init = std::move(segment.init);
    params_.push_back(context.store.declare(std::move(spec)));
    begin += size;
  }
}

template <class T>
Index Weight<T>::shard_size() const {
  Index size = 0;
  for (const Param<T>* param : params_) {
    FOURFOLD_ASSERT(param->group_offset == params_.front()->group_offset + size, "fused weights lie side by side");
    size += param->spec.shard.size();
  }
  return size;
}

template <class T>
std::size_t Weight<T>::register_use(GatherQueue<T>& gathers, bool backward) const {
  if (gather_.ranks() == 1) return 0;
  const auto start = [this](Phase phase) {
    Tensor<T> whole(context_.pool, MemoryTag::buffers, rows_, cols_);
    Pending pending = gather_.start_forward(kernels::Vector<const T>(params_.front()->use().data(), shard_size()),
                                            whole.vector(), phase);
    return std::pair(whole, std::move(pending));
  };
  return gathers.add({start, [this] { reduce_whole_gradient(); }, this, backward});
}

template <class T>
UsableWeight<T> Weight<T>::use(GatherQueue<T>& gathers, std::size_t use, Phase phase) const {
  UsableWeight<T> usable;
  if (gather_.ranks() == 1) {
    FOURFOLD_ASSERT(shard_size() == rows_ * cols_, "the whole local matrix is here");
    usable.matrix = kernels::Matrix<const T>(params_.front()->use().data(), rows_, cols_);
    return usable;
  }
  usable.gathered = gathers.take(use, phase, context_.options.overlap);
  usable.matrix = usable.gathered.matrix();
  return usable;
}

template <class T>
kernels::Matrix<kernels::Acc<T>> Weight<T>::local_gradient() const {
  return kernels::Matrix<kernels::Acc<T>>(params_.front()->grad.data(), rows_, cols_);
}

template <class T>
void Weight<T>::scatter_gradient(const Tensor<kernels::Acc<T>>& whole) const {
  const Index size = shard_size();
  Tensor<kernels::Acc<T>> mine(context_.pool, MemoryTag::buffers, 1, size);
  Pending pending = gather_.start_adjoint(whole.vector(), mine.vector());
  context_.deferred.add(std::move(pending), [this, whole, mine, size] {
    const kernels::Vector<kernels::Acc<T>> sum(params_.front()->grad.data(), size);
    const bool first = next_write(params_) == kernels::Write::overwrite;
    const auto put = first ? kernels::copy<kernels::Acc<T>> : kernels::add<kernels::Acc<T>, kernels::Acc<T>>;
    put(Space(), mine.vector(), sum);
  });
  if (!context_.options.overlap) context_.deferred.finish();
}

template <class T>
void Weight<T>::reduce_whole_gradient() const {
  if (whole_gradient_.data() == nullptr) return;
  scatter_gradient(whole_gradient_);
  whole_gradient_ = {};
}

template class Weight<float>;
template class Weight<double>;
template class Weight<kernels::bf16>;

}  // namespace fourfold
