#include "optim/norm.hpp"

#include <cmath>
#include <numeric>
#include <span>
#include <unordered_map>

#include "base/error.hpp"
#include "comm/collectives.hpp"
#include "kernels/vector.hpp"
#include "optim/reducer.hpp"

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

bool counts(const ParamSpec& spec, const Coordinates& here) {
  if (!spec.owner) return false;
  for (int i = 0; i < kAxes; ++i) {
    const auto axis = static_cast<Axis>(i);
    if (spec.sum_over.has(axis) && here[axis] != 0) return false;
  }
  return here.row % spec.sum_over.row_block == 0;
}

template <class T>
GradientNorm<T>::GradientNorm(const NumericsDeck& numerics, const GridComms& comms, ParamStore<T>& store)
    : numerics_(numerics), comms_(comms), store_(store) {
  std::vector<std::string> mine;
  for (const Param<T>& param : store.params()) mine.push_back(param.spec.name);
  names_ = agree_on_names(comms.world(), mine);
  std::unordered_map<std::string, std::size_t> place;
  for (std::size_t i = 0; i < names_.size(); ++i) place.emplace(names_[i], i);
  for (const std::string& name : mine) places_.push_back(place.at(name));
}

template <class T>
NormReport GradientNorm<T>::compute() const {
  using A = kernels::Acc<T>;
  const Space space;
  std::vector<double> sums(names_.size(), 0.0);
  std::size_t i = 0;
  for (const Param<T>& param : store_.params()) {
    const std::size_t place = places_[i++];
    if (!counts(param.spec, comms_.here())) continue;
    sums[place] += kernels::sum_squares<A>(space, kernels::Vector<const A>(param.grad.data(), param.grad.extent(0)));
  }
  all_reduce_sum<double>(comms_.world(), sums, Summation::deterministic, Phase::update);
  double total = 0;
  for (const double sum : sums) total += sum;
  NormReport report;
  report.norm = std::sqrt(total);
  broadcast<double>(comms_.world(), {&report.norm, 1}, 0, Phase::update);
  if (!std::isfinite(report.norm)) {
    for (std::size_t tensor = 0; tensor < sums.size() && report.first_non_finite.empty(); ++tensor) {
      if (!std::isfinite(sums[tensor])) report.first_non_finite = names_[tensor];
    }
  } else if (numerics_.snap && total >= exact_limit(2 * snap_gradient_bits(*numerics_.snap))) {
    fail_all(ExitCode::error, "numerics.snap: the gradient norm leaves the range in which its sum is exact");
  }
  return report;
}

double clip_factor(double clip, double norm) {
  return clip > 0 && norm > clip ? clip / norm : 1.0;
}

template class GradientNorm<float>;
template class GradientNorm<double>;

}  // namespace fourfold
