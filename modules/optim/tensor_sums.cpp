#include "optim/tensor_sums.hpp"

#include <algorithm>
#include <numeric>
#include <span>
#include <unordered_map>

#include "comm/collectives.hpp"

namespace fourfold {

namespace {

// Every rank's names in rank order, each name once.
std::vector<std::string> agree_on_names(const Communicator& world, const std::vector<std::string>& mine) {
  std::string text;
  for (const std::string& name : mine) text += name + '\n';
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(world.size()));
  const std::vector<std::int64_t> ones(sizes.size(), 1);
  const auto size = static_cast<std::int64_t>(text.size());
  all_gather<std::int64_t>(world, {&size, 1}, sizes, ones, Phase::setup);
  std::string all(static_cast<std::size_t>(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0})), '\0');
  all_gather<std::byte>(world, std::as_bytes(std::span(text)), std::as_writable_bytes(std::span(all)), sizes,
                        Phase::setup);
  std::vector<std::string> names;
  std::unordered_map<std::string, std::size_t> seen;
  for (std::size_t begin = 0; begin < all.size();) {
    const std::size_t end = all.find('\n', begin);
    std::string name = all.substr(begin, end - begin);
    if (seen.emplace(name, names.size()).second) names.push_back(std::move(name));
    begin = end + 1;
  }
  return names;
}

}  // namespace

template <class T>
Range range_in_part(const Param<T>& param, const GroupPlan& plan) {
  const Index begin = param.group_offset;
  const Range both = intersect(plan.mine, Range{begin, begin + param.spec.shard.size()});
  return both.empty() ? Range{0, 0} : Range{both.begin - begin, both.end - begin};
}

template <class T>
TensorSums<T>::TensorSums(const UpdatePlan& plan, const GridComms& comms, const ParamStore<T>& store)
    : plan_(plan), comms_(comms), store_(store) {
  std::vector<std::string> mine;
  for (const Param<T>& param : store.params()) mine.push_back(param.spec.name);
  names_ = agree_on_names(comms.world(), mine);
  std::unordered_map<std::string, std::size_t> place;
  for (std::size_t i = 0; i < names_.size(); ++i) place.emplace(names_[i], i);
  for (const std::string& name : mine) places_.push_back(place.at(name));
}

template <class T>
std::vector<double> TensorSums<T>::compute(std::size_t kinds, const Local& local) const {
  std::vector<double> sums(names_.size() * kinds, 0.0);
  std::size_t i = 0;
  for (const Param<T>& param : store_.params()) {
    double* const here = sums.data() + places_[i++] * kinds;
    const GroupPlan& plan = plan_.group(static_cast<std::size_t>(param.group));
    if (param.spec.owner && plan.counts()) local(param, range_in_part(param, plan), here);
  }
  all_reduce_sum<double>(comms_.world(), sums, Summation::deterministic, Phase::update);
  return sums;
}

template Range range_in_part<float>(const Param<float>&, const GroupPlan&);
template Range range_in_part<double>(const Param<double>&, const GroupPlan&);
template Range range_in_part<kernels::bf16>(const Param<kernels::bf16>&, const GroupPlan&);
template class TensorSums<float>;
template class TensorSums<double>;
template class TensorSums<kernels::bf16>;

}  // namespace fourfold
