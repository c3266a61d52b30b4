#include "kernels/activation.hpp"

#include "kernels/math.hpp"
#include "kernels/stream.hpp"

namespace fourfold::kernels {

namespace {

// gelu_tanh: x/2 (1 + tanh u) = x s(2u) with s the logistic function; 2u and its derivative.
template <class T>
struct TwiceTanhArgument {
  static constexpr T kLinear = T(1.59576912160573071176);  // 2 sqrt(2/pi)
  static constexpr T kCubic = T(0.044715);
  KOKKOS_FORCEINLINE_FUNCTION static T value(T x) { return kLinear * x * (T(1) + kCubic * x * x); }
  KOKKOS_FORCEINLINE_FUNCTION static T slope(T x) { return kLinear * (T(1) + T(3) * kCubic * x * x); }
};

}  // namespace

// Written so that NaN stays NaN and -0 becomes 0.
template <class T>
void relu_forward(const Space& space, Vector<const T> x, Vector<T> y) {
  write_elements(
      "relu_forward", space, y.extent(0), x.data(), y.data(),
      KOKKOS_LAMBDA(const Index i) { return x(i) <= T(0) ? T(0) : x(i); });
}

template <class T>
void relu_backward(const Space& space, Vector<const T> x, Vector<const T> dy, Vector<T> dx) {
  write_elements(
      "relu_backward", space, dx.extent(0), dy.data(), dx.data(),
      KOKKOS_LAMBDA(const Index i) { return x(i) <= T(0) ? T(0) : dy(i); });
}

template <class T>
void gelu_forward(const Space& space, Vector<const T> x, Vector<T> y) {
  write_elements(
      "gelu_forward", space, y.extent(0), x.data(), y.data(),
      KOKKOS_LAMBDA(const Index i) { return gelu(Acc<T>(x(i))); });
}

template <class T>
void gelu_backward(const Space& space, Vector<const T> x, Vector<const T> dy, Vector<T> dx) {
  write_elements(
      "gelu_backward", space, dx.extent(0), dy.data(), dx.data(),
      KOKKOS_LAMBDA(const Index i) { return dy(i) * gelu_slope(Acc<T>(x(i))); });
}

template <class T>
void gelu_tanh_forward(const Space& space, Vector<const T> x, Vector<T> y) {
  write_elements(
      "gelu_tanh_forward", space, y.extent(0), x.data(), y.data(), KOKKOS_LAMBDA(const Index i) {
        const Acc<T> value = x(i);
        return times_logistic(value, TwiceTanhArgument<Acc<T>>::value(value));
      });
}

template <class T>
void gelu_tanh_backward(const Space& space, Vector<const T> x, Vector<const T> dy, Vector<T> dx) {
  write_elements(
      "gelu_tanh_backward", space, dx.extent(0), dy.data(), dx.data(), KOKKOS_LAMBDA(const Index i) {
        using A = Acc<T>;
        const A value = x(i);
        const Logistic<A> s = logistic(TwiceTanhArgument<A>::value(value));
        return dy(i) * s.value * (A(1) + value * s.complement * TwiceTanhArgument<A>::slope(value));
      });
}

template <class T>
void swiglu_forward(const Space& space, Matrix<const T> gate_up, Matrix<T> y) {
  const Index width = y.extent(1);
  const bool around = goes_around_caches<T>(y.data(), y.size());
  Kokkos::parallel_for(
      "swiglu_forward", Range1(space, 0, y.extent(0)), KOKKOS_LAMBDA(const Index r) {
        const T* gate = gate_up.data() + r * gate_up.stride(0);
        const T* up = gate + width;
        write_run(around, width, y.data() + r * y.stride(0),
                  [=](Index j) { return times_logistic<Acc<T>>(gate[j] * up[j], gate[j]); });
      });
  finish_stores_around_caches(around);
}

template <class T>
void swiglu_backward(const Space& space, Matrix<const T> gate_up, Matrix<const T> dy, Matrix<T> dgate_up) {
  const Index width = dy.extent(1);
  const bool around = goes_around_caches<T>(dgate_up.data(), dgate_up.size(), gate_up.data());
  Kokkos::parallel_for(
      "swiglu_backward", Range1(space, 0, dy.extent(0)), KOKKOS_LAMBDA(const Index r) {
        const T* gate = gate_up.data() + r * gate_up.stride(0);
        const T* up = gate + width;
        const T* d = dy.data() + r * dy.stride(0);
        T* dgate = dgate_up.data() + r * dgate_up.stride(0);
        write_two_runs(around, width, dgate, dgate + width, [=](Index j, T& to_gate, T& to_up) {
          const Logistic<Acc<T>> s = logistic<Acc<T>>(gate[j]);
          const Acc<T> silu = gate[j] * s.value;
          const Acc<T> slope = s.value + silu * s.complement;
          to_gate = d[j] * up[j] * slope;
          to_up = d[j] * silu;
        });
      });
  finish_stores_around_caches(around);
}

#define FOURFOLD_INSTANTIATE(T)                                                                   \
  template void relu_forward<T>(const Space&, Vector<const T>, Vector<T>);                        \
  template void relu_backward<T>(const Space&, Vector<const T>, Vector<const T>, Vector<T>);      \
  template void gelu_forward<T>(const Space&, Vector<const T>, Vector<T>);                        \
  template void gelu_backward<T>(const Space&, Vector<const T>, Vector<const T>, Vector<T>);      \
  template void gelu_tanh_forward<T>(const Space&, Vector<const T>, Vector<T>);                   \
  template void gelu_tanh_backward<T>(const Space&, Vector<const T>, Vector<const T>, Vector<T>); \
  template void swiglu_forward<T>(const Space&, Matrix<const T>, Matrix<T>);                      \
  template void swiglu_backward<T>(const Space&, Matrix<const T>, Matrix<const T>, Matrix<T>);
FOURFOLD_INSTANTIATE(float)
FOURFOLD_INSTANTIATE(double)
FOURFOLD_INSTANTIATE(bf16)
#undef FOURFOLD_INSTANTIATE

}  // namespace fourfold::kernels
