#include "kernels/loss.hpp"

#include <cmath>
#include <limits>

#include "kernels/lanes.hpp"
#include "kernels/math.hpp"
#include "kernels/stream.hpp"

namespace fourfold::kernels {

template <class T>
void cross_entropy_max(const Space& space, Matrix<const T> logits, Vector<Acc<T>> max) {
  const Index width = logits.extent(1);
  Kokkos::parallel_for(
      "cross_entropy_max", Range1(space, 0, logits.extent(0)), KOKKOS_LAMBDA(Index r) {
        const T* row = logits.data() + r * width;
        max(r) = lane_max<Acc<T>>(width, [=](Index j) { return static_cast<Acc<T>>(row[j]); });
      });
}

template <class T>
void cross_entropy_sums(const Space& space, Matrix<const T> logits, Vector<const Acc<T>> max,
                        Vector<const std::int32_t> targets, Index first_id, Vector<Acc<T>> sum_exp,
                        Vector<Acc<T>> target_logit) {
  const Index width = logits.extent(1);
  Kokkos::parallel_for(
      "cross_entropy_sums", Range1(space, 0, logits.extent(0)), KOKKOS_LAMBDA(Index r) {
        const T* row = logits.data() + r * width;
        const Acc<T> top = max(r);
        sum_exp(r) =
            lane_sum<Acc<T>>(width, [=](Index j) { return fast_exp_below(static_cast<Acc<T>>(row[j]) - top); });
        const Index column = targets(r) - first_id;
        const bool here = targets(r) >= 0 && column >= 0 && column < width;
        target_logit(r) = here ? static_cast<Acc<T>>(row[column]) : Acc<T>(0);
      });
}

template <class T>
void cross_entropy_forward(const Space& space, Vector<const Acc<T>> max, Vector<const Acc<T>> sum_exp,
                           Vector<const Acc<T>> target_logit, Vector<const std::int32_t> targets, Vector<double> loss) {
  Kokkos::parallel_for(
      "cross_entropy_forward", Range1(space, 0, targets.extent(0)), KOKKOS_LAMBDA(Index r) {
        const double log_sum = std::log(static_cast<double>(sum_exp(r)));
        // The two logits first: their difference is small where the loss is.
        const double below_top = static_cast<double>(max(r)) - static_cast<double>(target_logit(r));
        loss(r) = targets(r) < 0 ? 0.0 : log_sum + below_top;
      });
}

template <class T>
void cross_entropy_backward(const Space& space, Matrix<const T> logits, Vector<const Acc<T>> max,
                            Vector<const Acc<T>> sum_exp, Vector<const std::int32_t> targets, Index first_id,
                            double scale, Matrix<T> dlogits) {
  const Index width = logits.extent(1);
  const bool around = goes_around_caches<T>(dlogits.data(), dlogits.size(), logits.data());
  Kokkos::parallel_for(
      "cross_entropy_backward", Range1(space, 0, logits.extent(0)), KOKKOS_LAMBDA(Index r) {
        const T* row = logits.data() + r * width;
        T* out = dlogits.data() + r * width;
        if (targets(r) < 0) {
          for (Index j = 0; j < width; ++j) out[j] = T(0);
          return;
        }
        const Acc<T> top = max(r);
        const Acc<T> factor = static_cast<Acc<T>>(scale / static_cast<double>(sum_exp(r)));
        const Index column = targets(r) - first_id;
        const bool here = column >= 0 && column < width;
        // Before the logits go, which may lie where the gradient does: not from its rounded value.
        const Acc<T> at_target = here ? fast_exp_below(static_cast<Acc<T>>(row[column]) - top) * factor : Acc<T>(0);
        write_run(around, width, out,
                  [=](Index j) { return static_cast<T>(fast_exp_below(static_cast<Acc<T>>(row[j]) - top) * factor); });
        if (here) out[column] = static_cast<T>(at_target - static_cast<Acc<T>>(scale));
      });
  finish_stores_around_caches(around);
}

template <class T>
void squared_error_forward(const Space& space, Matrix<const T> y, Matrix<const T> target, Vector<double> loss) {
  const Index width = y.extent(1);
  Kokkos::parallel_for(
      "squared_error_forward", Range1(space, 0, y.extent(0)), KOKKOS_LAMBDA(Index r) {
        const T* row = y.data() + r * width;
        const T* goal = target.data() + r * width;
        loss(r) = 0.5 * lane_sum<double>(width, [=](Index j) {
                    const double error = static_cast<double>(Acc<T>(row[j])) - static_cast<double>(Acc<T>(goal[j]));
                    return error * error;
                  });
      });
}

template <class T>
void squared_error_backward(const Space& space, Matrix<const T> y, Matrix<const T> target, double scale, Matrix<T> dy) {
  const Acc<T> factor = static_cast<Acc<T>>(scale);
  Kokkos::parallel_for(
      "squared_error_backward", Range1(space, 0, y.size()), KOKKOS_LAMBDA(Index i) {
        const Acc<T> error = static_cast<Acc<T>>(y.data()[i]) - static_cast<Acc<T>>(target.data()[i]);
        dy.data()[i] = static_cast<T>(error * factor);
      });
}

template <class T>
void squared_error_onehot_forward(const Space& space, Matrix<const T> y, Vector<const std::int32_t> targets,
                                  Index first_id, Vector<double> loss) {
  const Index width = y.extent(1);
  Kokkos::parallel_for(
      "squared_error_onehot_forward", Range1(space, 0, y.extent(0)), KOKKOS_LAMBDA(Index r) {
        const T* row = y.data() + r * width;
        const Index column = targets(r) - first_id;
        const double sum = lane_sum<double>(width, [=](Index j) {
          const double error = static_cast<double>(Acc<T>(row[j])) - (j == column ? 1.0 : 0.0);
          return error * error;
        });
        loss(r) = targets(r) < 0 ? 0.0 : 0.5 * sum;
      });
}

template <class T>
void squared_error_onehot_backward(const Space& space, Matrix<const T> y, Vector<const std::int32_t> targets,
                                   Index first_id, double scale, Matrix<T> dy) {
  const Index width = y.extent(1);
  const Acc<T> factor = static_cast<Acc<T>>(scale);
  Kokkos::parallel_for(
      "squared_error_onehot_backward", Range1(space, 0, y.extent(0)), KOKKOS_LAMBDA(Index r) {
        const T* row = y.data() + r * width;
        T* out = dy.data() + r * width;
        const Index column = targets(r) - first_id;
        const bool counts = targets(r) >= 0;
        for (Index j = 0; j < width; ++j) {
          const Acc<T> error = static_cast<Acc<T>>(row[j]) - (j == column ? Acc<T>(1) : Acc<T>(0));
          out[j] = counts ? static_cast<T>(error * factor) : T(0);
        }
      });
}

Index count_targets(const Space& space, Vector<const std::int32_t> targets) {
  Index count = 0;
  Kokkos::parallel_reduce(
      "count_targets", Range1(space, 0, targets.extent(0)),
      KOKKOS_LAMBDA(Index r, Index & sum) { sum += targets(r) >= 0 ? 1 : 0; }, count);
  return count;
}

#define FOURFOLD_INSTANTIATE(T)                                                                                        \
  template void cross_entropy_max<T>(const Space&, Matrix<const T>, Vector<Acc<T>>);                                   \
  template void cross_entropy_sums<T>(const Space&, Matrix<const T>, Vector<const Acc<T>>, Vector<const std::int32_t>, \
                                      Index, Vector<Acc<T>>, Vector<Acc<T>>);                                          \
  template void cross_entropy_forward<T>(const Space&, Vector<const Acc<T>>, Vector<const Acc<T>>,                     \
                                         Vector<const Acc<T>>, Vector<const std::int32_t>, Vector<double>);            \
  template void cross_entropy_backward<T>(const Space&, Matrix<const T>, Vector<const Acc<T>>, Vector<const Acc<T>>,   \
                                          Vector<const std::int32_t>, Index, double, Matrix<T>);                       \
  template void squared_error_forward<T>(const Space&, Matrix<const T>, Matrix<const T>, Vector<double>);              \
  template void squared_error_backward<T>(const Space&, Matrix<const T>, Matrix<const T>, double, Matrix<T>);          \
  template void squared_error_onehot_forward<T>(const Space&, Matrix<const T>, Vector<const std::int32_t>, Index,      \
                                                Vector<double>);                                                       \
  template void squared_error_onehot_backward<T>(const Space&, Matrix<const T>, Vector<const std::int32_t>, Index,     \
                                                 double, Matrix<T>);
FOURFOLD_INSTANTIATE(float)
FOURFOLD_INSTANTIATE(double)
FOURFOLD_INSTANTIATE(bf16)
#undef FOURFOLD_INSTANTIATE

}  // namespace fourfold::kernels
