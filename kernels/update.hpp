// Optimizer updates on flat arrays, fused: each reads and writes every element once. `scale` is the clip factor.
#pragma once

#include "kernels/types.hpp"

namespace fourfold::kernels {

// What an update changes. bf16: the masters in float, on which it is made (a bf16 cannot move by less than half a
// unit), and the values, which follow rounded. Else the values themselves.
template <class T>
class Weights {
 public:
  Weights(Vector<Acc<T>> masters, Vector<T> values) : masters_(masters), values_(values) {}
  Weights(Vector<T> values)  // NOLINT(*-explicit-*)
      requires kStoredAsComputed<T> : masters_(values),
                                      values_(values) {}

  Index size() const { return static_cast<Index>(values_.extent(0)); }
  KOKKOS_FORCEINLINE_FUNCTION Acc<T> get(Index i) const { return masters_(i); }
  KOKKOS_FORCEINLINE_FUNCTION void set(Index i, Acc<T> weight) const {
    masters_(i) = weight;
    if constexpr (!kStoredAsComputed<T>) values_(i) = weight;
  }

 private:
  Vector<Acc<T>> masters_;
  Vector<T> values_;
};

// g = scale grad; w -= rate (g + decay w).
template <class T>
void sgd_update(const Space& space, Vector<const Acc<T>> grad, double scale, double rate, double decay, Weights<T> w);
// v = momentum v + g; w -= rate (v + decay w).
template <class T>
void momentum_update(const Space& space, Vector<const Acc<T>> grad, double scale, double rate, double momentum,
                     double decay, Weights<T> w, Vector<Acc<T>> v);
// m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; w -= rate (m/c1 / (sqrt(v/c2) + eps) + decay w), c = 1 - b^step.
// Loshchilov & Hutter 2019; step counts from 1.
struct AdamW {
  double rate = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, decay = 0;
  Index step = 1;
};
template <class T>
void adamw_update(const Space& space, Vector<const Acc<T>> grad, double scale, const AdamW& options, Weights<T> w,
                  Vector<Acc<T>> m, Vector<Acc<T>> v);

// v = momentum v + rate (g + decay w); w -= v. You, Gitman & Ginsburg 2017; `rate` includes the layer's trust ratio.
template <class T>
void lars_update(const Space& space, Vector<const Acc<T>> grad, double scale, double rate, double momentum,
                 double decay, Weights<T> w, Vector<Acc<T>> v);
// AdamW's moments, and u = m/c1 / (sqrt(v/c2) + eps) + decay w. You et al. 2020 (LAMB); options.rate is not used.
// T: float or double; w: the masters.
template <class T>
void lamb_direction(const Space& space, Vector<const T> grad, double scale, const AdamW& options, Vector<const T> w,
                    Vector<T> m, Vector<T> v, Vector<T> u);
// w -= rate u.
template <class T>
void step_along(const Space& space, double rate, Vector<const Acc<T>> u, Weights<T> w);

}  // namespace fourfold::kernels
