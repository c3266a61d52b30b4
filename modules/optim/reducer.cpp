#include "optim/reducer.hpp"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "comm/collectives.hpp"
#include "kernels/vector.hpp"

namespace fourfold {

template <class T>
Reducer<T>::Reducer(const NumericsDeck& numerics, const GridComms& comms, ParamStore<T>& store,
                    std::int64_t bucket_bytes)
    : numerics_(numerics),
      comms_(comms),
      store_(store),
      bucket_elements_(std::max<std::int64_t>(1, bucket_bytes / static_cast<std::int64_t>(sizeof(kernels::Acc<T>)))) {}

template <class T>
void Reducer<T>::reduce() {
  using A = kernels::Acc<T>;
  if (numerics_.snap) check_range();
  const Summation summation = numerics_.deterministic ? Summation::deterministic : Summation::fast;
  const Space space;
  space.fence();  // the gradients are complete
  std::vector<Pending> sums;
  for (ParamGroup<T>& group : store_.groups()) {
    if (group.sum_over.empty()) continue;
    const Communicator& ranks = comms_.group(group.sum_over);
    if (ranks.size() == 1) continue;
    const std::span<A> all(group.grads.data(), static_cast<std::size_t>(group.grads.size()));
    for (std::int64_t begin = 0; begin < group.grads.size(); begin += bucket_elements_) {
      const std::int64_t size = std::min(bucket_elements_, group.grads.size() - begin);
      sums.push_back(
          start_all_reduce_sum<A>(ranks, all.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size)),
                                  summation, Phase::gradient));
    }
  }
  for (Pending& sum : sums) sum.wait();
  if (numerics_.snap) {
    for (ParamGroup<T>& group : store_.groups()) {
      kernels::snap<A>(space, snap_gradient_bits(*numerics_.snap), group.grads.vector());
    }
  }
}

// The sum over ranks of each rank's largest magnitude bounds the sum of absolute values of every element.
template <class T>
void Reducer<T>::check_range() const {
  using A = kernels::Acc<T>;
  const double limit = exact_limit(snap_product_bits(*numerics_.snap));
  const Space space;
  for (const ParamGroup<T>& group : store_.groups()) {
    double bound = kernels::max_abs<A>(space, kernels::Vector<const A>(group.grads.data(), group.grads.size()));
    if (!group.sum_over.empty()) {
      all_reduce_sum<double>(comms_.group(group.sum_over), {&bound, 1}, Summation::deterministic, Phase::control);
    }
    // Groups of other ranks may have another verdict: agree before leaving.
    double out_of_range = bound < limit ? 0.0 : 1.0;
    all_reduce_max<double>(comms_.world(), {&out_of_range, 1}, Phase::control);
    if (out_of_range != 0.0) {
      fail_all(ExitCode::error, "numerics.snap: a gradient sum over " + group.sum_over.name() +
                                    " leaves the range in which it is exact (2^52 units)");
    }
  }
}

template class Reducer<float>;
template class Reducer<double>;

}  // namespace fourfold
