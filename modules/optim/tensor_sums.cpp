#include "optim/tensor_sums.hpp"

#include <algorithm>
#include <bit>
#include <numeric>
#include <span>
#include <sstream>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "comm/agree.hpp"
#include "comm/collectives.hpp"

namespace fourfold {

namespace {

// The texts of all ranks in rank order, each as often as one rank has it: most ranks of a stage have the same.
std::string gather_distinct_texts(const Communicator& world, std::string text) {
  std::vector<std::int64_t> hashes(static_cast<std::size_t>(world.size()));
  const auto hash = std::bit_cast<std::int64_t>(hash_bytes(text));
  all_gather<std::int64_t>(world, {&hash, 1}, hashes, std::vector<std::int64_t>(hashes.size(), 1), Phase::setup);
  if (std::find(hashes.begin(), hashes.end(), hash) - hashes.begin() < world.rank()) text.clear();
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(world.size()));
  const std::vector<std::int64_t> ones(sizes.size(), 1);
  const auto size = static_cast<std::int64_t>(text.size());
  all_gather<std::int64_t>(world, {&size, 1}, sizes, ones, Phase::setup);
  std::string all(static_cast<std::size_t>(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0})), '\0');
  all_gather<std::byte>(world, std::as_bytes(std::span(text)), std::as_writable_bytes(std::span(all)), sizes,
                        Phase::setup);
  return all;
}

}  // namespace

template <class T>
std::vector<ModelTensor> agree_on_tensors(const Communicator& world, const ParamStore<T>& store) {
  std::ostringstream mine;  // a line a tensor: unit, name, dims, lengths
  for (const Param<T>& param : store.params()) {
    mine << param.unit << ' ' << param.spec.name << ' ' << param.spec.shard.shape.size();
    for (const std::int64_t length : param.spec.shard.shape) mine << ' ' << length;
    mine << '\n';
  }
  std::istringstream all(gather_distinct_texts(world, mine.str()));
  std::unordered_set<std::string> seen;
  std::vector<std::pair<std::int64_t, ModelTensor>> tensors;
  std::int64_t unit = 0;
  std::size_t dims = 0;
  for (ModelTensor tensor; all >> unit >> tensor.name >> dims;) {
    tensor.shape.resize(dims);
    for (std::int64_t& length : tensor.shape) all >> length;
    if (seen.insert(tensor.name).second) tensors.emplace_back(unit, tensor);
  }
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<ModelTensor> ordered;
  for (auto& tensor : tensors) ordered.push_back(std::move(tensor.second));
  return ordered;
}

template <class T>
Range range_in_part(const Param<T>& param, const GroupPlan& plan) {
  const Index begin = param.group_offset;
  const Range both = intersect(plan.mine, Range{begin, begin + param.spec.shard.size()});
  return both.empty() ? Range{0, 0} : Range{both.begin - begin, both.end - begin};
}

template <class T>
TensorSums<T>::TensorSums(const UpdatePlan& plan, const GridComms& comms, const ParamStore<T>& store)
    : plan_(plan), comms_(comms), store_(store) {
  for (const ModelTensor& tensor : agree_on_tensors(comms.world(), store)) names_.push_back(tensor.name);
  std::unordered_map<std::string, std::size_t> place;
  for (std::size_t i = 0; i < names_.size(); ++i) place.emplace(names_[i], i);
  for (const Param<T>& param : store.params()) places_.push_back(place.at(param.spec.name));
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

template std::vector<ModelTensor> agree_on_tensors(const Communicator&, const ParamStore<float>&);
template std::vector<ModelTensor> agree_on_tensors(const Communicator&, const ParamStore<double>&);
template std::vector<ModelTensor> agree_on_tensors(const Communicator&, const ParamStore<kernels::bf16>&);
template Range range_in_part<float>(const Param<float>&, const GroupPlan&);
template Range range_in_part<double>(const Param<double>&, const GroupPlan&);
template Range range_in_part<kernels::bf16>(const Param<kernels::bf16>&, const GroupPlan&);
template class TensorSums<float>;
template class TensorSums<double>;
template class TensorSums<kernels::bf16>;

}  // namespace fourfold
