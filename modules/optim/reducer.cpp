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
Reducer<T>::Reducer(const Deck& deck, const UpdatePlan& plan, const GridComms& comms, ParamStore<T>& store, Pool& pool)
    : numerics_(deck.numerics),
      plan_(plan),
      comms_(comms),
      store_(store),
      pool_(pool),
      bucket_elements_(
          std::max<std::int64_t>(1, deck.comm.bucket_bytes / static_cast<std::int64_t>(sizeof(kernels::Acc<T>)))),
      overlap_(deck.parallel.overlap) {}

template <class T>
void Reducer<T>::reduce() {
  using A = kernels::Acc<T>;
  store_.finish_gradients();
  if (numerics_.snap) check_range();
  const Summation summation = numerics_.deterministic ? Summation::deterministic : Summation::fast;
  const Space space;
  space.fence();  // the gradients are complete
  const auto buffer = [&](std::size_t g) {
    ParamGroup<T>& group = store_.groups()[g];
    return std::span<A>(group.grads.data(), static_cast<std::size_t>(group.grads.size()));
  };
  const std::size_t groups = store_.groups().size();
  std::vector<Pending> sums, gathers;
  for (std::size_t g = 0; g < groups; ++g) {
    sums.push_back(start_reduce_to_part<A>(plan_.group(g), buffer(g), bucket_elements_, overlap_, summation, pool_));
  }
  for (std::size_t g = 0; g < groups; ++g) {
    sums[g].wait();
    if (plan_.group(g).sharded) continue;
    gathers.push_back(start_gather_parts<A>(plan_.group(g), buffer(g), Phase::gradient));
    if (!overlap_) gathers.back().wait();
  }
  for (Pending& gather : gathers) gather.wait();
  if (!numerics_.snap) return;
  for (std::size_t g = 0; g < groups; ++g) {
    ParamGroup<T>& group = store_.groups()[g];
    const Range mine = plan_.group(g).mine;
    kernels::snap<A>(space, snap_gradient_bits(*numerics_.snap),
                     kernels::Vector<A>(group.grads.data() + mine.begin, mine.size()));
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
template class Reducer<kernels::bf16>;

}  // namespace fourfold
