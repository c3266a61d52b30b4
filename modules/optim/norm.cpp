#include "optim/norm.hpp"

#include <cmath>

#include "base/error.hpp"
#include "comm/collectives.hpp"
#include "kernels/vector.hpp"
#include "optim/reducer.hpp"

namespace fourfold {

template <class T>
GradientNorm<T>::GradientNorm(const NumericsDeck& numerics, const GridComms& comms, const TensorSums<T>& tensors)
    : numerics_(numerics), comms_(comms), tensors_(tensors) {}

template <class T>
NormReport GradientNorm<T>::compute() const {
  using A = kernels::Acc<T>;
  const Space space;
  const std::vector<double> sums = tensors_.compute(1, [&](const Param<T>& param, Range range, double* sum) {
    *sum += kernels::sum_squares<A>(space, kernels::Vector<const A>(param.grad.data() + range.begin, range.size()));
  });
  double total = 0;
  for (const double sum : sums) total += sum;
  NormReport report;
  report.norm = std::sqrt(total);
  broadcast<double>(comms_.world(), {&report.norm, 1}, 0, Phase::update);
  if (!std::isfinite(report.norm)) {
    for (std::size_t tensor = 0; tensor < sums.size() && report.first_non_finite.empty(); ++tensor) {
      if (!std::isfinite(sums[tensor])) report.first_non_finite = tensors_.tensors()[tensor];
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
template class GradientNorm<kernels::bf16>;

}  // namespace fourfold
