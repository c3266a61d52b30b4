#include "kernels/update.hpp"

#include <cmath>

namespace fourfold::kernels {

template <class T>
void sgd_update(const Space& space, Vector<const T> grad, double scale, double rate, double decay, Vector<T> w) {
  const T s = static_cast<T>(scale);
  const T lr = static_cast<T>(rate);
  const T d = static_cast<T>(decay);
  Kokkos::parallel_for(
      "sgd_update", Range1(space, 0, w.extent(0)), KOKKOS_LAMBDA(const Index i) {
        const T old = w(i);
        w(i) = old - lr * (s * grad(i) + d * old);
      });
}

template <class T>
void momentum_update(const Space& space, Vector<const T> grad, double scale, double rate, double momentum, double decay,
                     Vector<T> w, Vector<T> v) {
  const T s = static_cast<T>(scale);
  const T lr = static_cast<T>(rate);
  const T mu = static_cast<T>(momentum);
  const T d = static_cast<T>(decay);
  Kokkos::parallel_for(
      "momentum_update", Range1(space, 0, w.extent(0)), KOKKOS_LAMBDA(const Index i) {
        const T old = w(i);
        const T speed = mu * v(i) + s * grad(i);
        v(i) = speed;
        w(i) = old - lr * (speed + d * old);
      });
}

template <class T>
void adamw_update(const Space& space, Vector<const T> grad, double scale, const AdamW& options, Vector<T> w,
                  Vector<T> m, Vector<T> v) {
  const T s = static_cast<T>(scale);
  const T b1 = static_cast<T>(options.beta1);
  const T b2 = static_cast<T>(options.beta2);
  const T rest1 = static_cast<T>(1.0 - options.beta1);
  const T rest2 = static_cast<T>(1.0 - options.beta2);
  const T correct1 = static_cast<T>(1.0 / (1.0 - std::pow(options.beta1, static_cast<double>(options.step))));
  const T correct2 = static_cast<T>(1.0 / (1.0 - std::pow(options.beta2, static_cast<double>(options.step))));
  const T lr = static_cast<T>(options.rate);
  const T eps = static_cast<T>(options.eps);
  const T decay = static_cast<T>(options.decay);
  Kokkos::parallel_for(
      "adamw_update", Range1(space, 0, w.extent(0)), KOKKOS_LAMBDA(const Index i) {
        const T g = s * grad(i);
        const T old = w(i);
        const T first = b1 * m(i) + rest1 * g;
        const T second = b2 * v(i) + rest2 * g * g;
        m(i) = first;
        v(i) = second;
        w(i) = old - lr * (first * correct1 / (std::sqrt(second * correct2) + eps) + decay * old);
      });
}

template <class T>
void lars_update(const Space& space, Vector<const T> grad, double scale, double rate, double momentum, double decay,
                 Vector<T> w, Vector<T> v) {
  const T s = static_cast<T>(scale);
  const T lr = static_cast<T>(rate);
  const T mu = static_cast<T>(momentum);
  const T d = static_cast<T>(decay);
  Kokkos::parallel_for(
      "lars_update", Range1(space, 0, w.extent(0)), KOKKOS_LAMBDA(const Index i) {
        const T old = w(i);
        const T speed = mu * v(i) + lr * (s * grad(i) + d * old);
        v(i) = speed;
        w(i) = old - speed;
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
void step_along(const Space& space, double rate, Vector<const T> u, Vector<T> w) {
  const T lr = static_cast<T>(rate);
  Kokkos::parallel_for(
      "step_along", Range1(space, 0, w.extent(0)), KOKKOS_LAMBDA(const Index i) { w(i) -= lr * u(i); });
}

#define FOURFOLD_INSTANTIATE(T)                                                                                        \
  template void sgd_update<T>(const Space&, Vector<const T>, double, double, double, Vector<T>);                       \
  template void momentum_update<T>(const Space&, Vector<const T>, double, double, double, double, Vector<T>,           \
                                   Vector<T>);                                                                         \
  template void adamw_update<T>(const Space&, Vector<const T>, double, const AdamW&, Vector<T>, Vector<T>, Vector<T>); \
  template void lars_update<T>(const Space&, Vector<const T>, double, double, double, double, Vector<T>, Vector<T>);   \
  template void lamb_direction<T>(const Space&, Vector<const T>, double, const AdamW&, Vector<const T>, Vector<T>,     \
                                  Vector<T>, Vector<T>);                                                               \
  template void step_along<T>(const Space&, double, Vector<const T>, Vector<T>);
FOURFOLD_INSTANTIATE(float)
FOURFOLD_INSTANTIATE(double)
#undef FOURFOLD_INSTANTIATE

}  // namespace fourfold::kernels
