#include "optim/reducer.hpp"

#include <algorithm>
#include <set>

#include "base/error.hpp"
#include "comm/collectives.hpp"
#include "kernels/vector.hpp"

namespace fourfold {

template <class T>
Reducer<T>::Reducer(const Deck& deck, const UpdatePlan& plan, const GridComms& comms, ParamStore<T>& store,
                    const TiedSum<T>* tied)
    : numerics_(deck.numerics),
      plan_(plan),
      comms_(comms),
      store_(store),
      bucket_elements_(
          std::max<std::int64_t>(1, deck.comm.bucket_bytes / static_cast<std::int64_t>(sizeof(kernels::Acc<T>)))),
      overlap_(deck.parallel.overlap),
      tied_(tied) {}

template <class T>
std::span<kernels::Acc<T>> Reducer<T>::buffer(std::size_t group) {
  ParamGroup<T>& of = store_.groups()[group];
  return {of.grads.data(), static_cast<std::size_t>(of.grads.size())};
}

template <class T>
void Reducer<T>::start_group(std::size_t group) {
  const Summation summation = numerics_.deterministic ? Summation::deterministic : Summation::fast;
  sums_[group] =
      start_reduce_to_part<kernels::Acc<T>>(plan_.group(group), buffer(group), bucket_elements_, overlap_, summation);
}

template <class T>
void Reducer<T>::start(int chunk) {
  const std::size_t groups = store_.groups().size();
  sums_.resize(groups);
  std::vector<std::size_t> fresh;
  for (std::size_t g = 0; g < groups; ++g) {
    if (store_.groups()[g].chunk == chunk && !sums_[g]) fresh.push_back(g);
  }
  for (const std::size_t g : fresh) ParamStore<T>::finish_gradients(store_.groups()[g]);
  for (const std::size_t g : fresh) {
    if (numerics_.snap) check_range(store_.groups()[g]);
  }
  Space().fence();  // the gradients are complete
  for (const std::size_t g : fresh) start_group(g);
}

template <class T>
void Reducer<T>::finish() {
  using A = kernels::Acc<T>;
  std::set<int> chunks;
  for (const ParamGroup<T>& group : store_.groups()) chunks.insert(group.chunk);
  for (const int chunk : chunks) start(chunk);
  if (numerics_.snap) {
    // Groups of other ranks may have another verdict: agree before leaving.
    double out_of_range = out_of_range_.empty() ? 0.0 : 1.0;
    all_reduce_max<double>(comms_.world(), {&out_of_range, 1}, Phase::control);
    if (out_of_range != 0.0) {
      fail_all(ExitCode::error, "numerics.snap: a gradient sum over " +
                                    (out_of_range_.empty() ? "other ranks" : out_of_range_) +
                                    " leaves the range in which it is exact (2^52 units)");
    }
  }
  const std::size_t groups = store_.groups().size();
  std::vector<Pending> gathers;
  for (std::size_t g = 0; g < groups; ++g) {
    sums_[g]->wait();
    if (tied_ != nullptr && tied_->group() == g) tied_->add();
    if (plan_.group(g).sharded) continue;
    gathers.push_back(start_gather_parts<A>(plan_.group(g), buffer(g), Phase::gradient));
    if (!overlap_) gathers.back().wait();
  }
  for (Pending& gather : gathers) gather.wait();
  sums_.clear();
  if (!numerics_.snap) return;
  for (std::size_t g = 0; g < groups; ++g) {
    ParamGroup<T>& group = store_.groups()[g];
    const Range mine = plan_.group(g).mine;
    kernels::snap<A>(Space(), snap_gradient_bits(*numerics_.snap),
                     kernels::Vector<A>(group.grads.data() + mine.begin, mine.size()));
  }
}

// The sum over ranks of each rank's largest magnitude bounds the sum of absolute values of every element. The verdict
// waits for finish().
template <class T>
void Reducer<T>::check_range(const ParamGroup<T>& group) {
  using A = kernels::Acc<T>;
  double bound = kernels::max_abs<A>(Space(), kernels::Vector<const A>(group.grads.data(), group.grads.size()));
  if (!group.sum_over.empty()) {
    all_reduce_sum<double>(comms_.group(group.sum_over), {&bound, 1}, Summation::deterministic, Phase::control);
  }
  // The other stage's sum comes to this one's: half the range for each.
  const bool halves = tied_ != nullptr && &store_.groups()[tied_->group()] == &group;
  if (!(bound < exact_limit(snap_product_bits(*numerics_.snap)) / (halves ? 2 : 1)) && out_of_range_.empty()) {
    out_of_range_ = group.sum_over.name();
  }
}

template class Reducer<float>;
template class Reducer<double>;
template class Reducer<kernels::bf16>;

}  // namespace fourfold
