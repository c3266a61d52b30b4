#include "kernels/update.hpp"

#include <cmath>

namespace fourfold::kernels {

template <class T>
void sgd_update(const Space& space, Vector<const Acc<T>> grad, double scale, double rate, double decay, Weights<T> w) {
  using A = Acc<T>;
  const A s = static_cast<A>(scale);
  const A lr = static_cast<A>(rate);
  const A d = static_cast<A>(decay);
  Kokkos::parallel_for(
      "sgd_update", Range1(space, 0, w.size()), KOKKOS_LAMBDA(const Index i) {
        const A old = w.get(i);
        w.set(i, old - lr * (s * grad(i) + d * old));
      });
}

template <class T>
void momentum_update(const Space& space, Vector<const Acc<T>> grad, double scale, double rate, double momentum,
                     double decay, Weights<T> w, Vector<Acc<T>> v) {
  using A = Acc<T>;
  const A s = static_cast<A>(scale);
  const A lr = static_cast<A>(rate);
  const A mu = static_cast<A>(momentum);
  const A d = static_cast<A>(decay);
  Kokkos::parallel_for(
      "momentum_update", Range1(space, 0, w.size()), KOKKOS_LAMBDA(const Index i) {
        const A old = w.get(i);
        const A speed = mu * v(i) + s * grad(i);
        v(i) = speed;
        w.set(i, old - lr * (speed + d * old));
      });
}

template <class T>
void adamw_update(const Space& space, Vector<const Acc<T>> grad, double scale, const AdamW& options, Weights<T> w,
                  Vector<Acc<T>> m, Vector<Acc<T>> v) {
  using A = Acc<T>;
  const A s = static_cast<A>(scale);
  const A b1 = static_cast<A>(options.beta1);
  const A b2 = static_cast<A>(options.beta2);
  const A rest1 = static_cast<A>(1.0 - options.beta1);
  const A rest2 = static_cast<A>(1.0 - options.beta2);
  const A correct1 = static_cast<A>(1.0 / (1.0 - std::pow(options.beta1, static_cast<double>(options.step))));
  const A correct2 = static_cast<A>(1.0 / (1.0 - std::pow(options.beta2, static_cast<double>(options.step))));
  const A lr = static_cast<A>(options.rate);
  const A eps = static_cast<A>(options.eps);
  const A decay = static_cast<A>(options.decay);
  Kokkos::parallel_for(
      "adamw_update", Range1(space, 0, w.size()), KOKKOS_LAMBDA(const Index i) {
        const A g = s * grad(i);
        const A old = w.get(i);
        const A first = b1 * m(i) + rest1 * g;
        const A second = b2 * v(i) + rest2 * g * g;
        m(i) = first;
        v(i) = second;
        w.set(i, old - lr * (first * correct1 / (std::sqrt(second * correct2) + eps) + decay * old));
      });
}

template <class T>
void lars_update(const Space& space, Vector<const Acc<T>> grad, double scale, double rate, double momentum,
                 double decay, Weights<T> w, Vector<Acc<T>> v) {
  using A = Acc<T>;
  const A s = static_cast<A>(scale);
  const A lr = static_cast<A>(rate);
  const A mu = static_cast<A>(momentum);
  const A d = static_cast<A>(decay);
  Kokkos::parallel_for(
      "lars_update", Range1(space, 0, w.size()), KOKKOS_LAMBDA(const Index i) {
        const A old = w.get(i);
        const A speed = mu * v(i) + lr * (s * grad(i) + d * old);
        v(i) = speed;
        w.set(i, old - speed);
      });
}

template <class T>
void lamb_direction(const Space& space, Vector<const T> grad, double scale, const AdamW& options, Vector<const T> w,
                    Vector<T> m, Vector<T> v, Vector<T> u) {
  const T s = static_cast<T>(scale);
  const T b1 = static_cast<T>(options.beta1);
  const T b2 = static_cast<T>(options.beta2);
  const T rest1 = static_cast<T>(1.0 - options.beta1);
  const T rest2 = static_cast<T>(1.0 - options.beta2);
  const T correct1 = static_cast<T>(1.0 / (1.0 - std::pow(options.beta1, static_cast<double>(options.step))));
  const T correct2 = static_cast<T>(1.0 / (1.0 - std::pow(options.beta2, static_cast<double>(options.step))));
  const T eps = static_cast<T>(options.eps);
  const T decay = static_cast<T>(options.decay);
  Kokkos::parallel_for(
      "lamb_direction", Range1(space, 0, w.extent(0)), KOKKOS_LAMBDA(const Index i) {
        const T g = s * grad(i);
        const T first = b1 * m(i) + rest1 * g;
        const T second = b2 * v(i) + rest2 * g * g;
        m(i) = first;
        v(i) = second;
        u(i) = first * correct1 / (std::sqrt(second * correct2) + eps) + decay * w(i);
      });
}

template <class T>
void step_along(const Space& space, double rate, Vector<const Acc<T>> u, Weights<T> w) {
  using A = Acc<T>;
  const A lr = static_cast<A>(rate);
  Kokkos::parallel_for(
      "step_along", Range1(space, 0, w.size()), KOKKOS_LAMBDA(const Index i) { w.set(i, w.get(i) - lr * u(i)); });
}

#define FOURFOLD_INSTANTIATE(T)                                                                                       \
  template void sgd_update<T>(const Space&, Vector<const Acc<T>>, double, double, double, Weights<T>);                \
  template void momentum_update<T>(const Space&, Vector<const Acc<T>>, double, double, double, double, Weights<T>,    \
                                   Vector<Acc<T>>);                                                                   \
  template void adamw_update<T>(const Space&, Vector<const Acc<T>>, double, const AdamW&, Weights<T>, Vector<Acc<T>>, \
                                Vector<Acc<T>>);                                                                      \
  template void lars_update<T>(const Space&, Vector<const Acc<T>>, double, double, double, double, Weights<T>,        \
                               Vector<Acc<T>>);                                                                       \
  template void step_along<T>(const Space&, double, Vector<const Acc<T>>, Weights<T>);
FOURFOLD_INSTANTIATE(float)
FOURFOLD_INSTANTIATE(double)
FOURFOLD_INSTANTIATE(bf16)
#undef FOURFOLD_INSTANTIATE

template void lamb_direction(const Space&, Vector<const float>, double, const AdamW&, Vector<const float>,
                             Vector<float>, Vector<float>, Vector<float>);
template void lamb_direction(const Space&, Vector<const double>, double, const AdamW&, Vector<const double>,
                             Vector<double>, Vector<double>, Vector<double>);

}  // namespace fourfold::kernels
