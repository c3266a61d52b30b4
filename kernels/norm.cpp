#include "kernels/norm.hpp"

#include <cmath>

#include "kernels/columns.hpp"
#include "kernels/lanes.hpp"
#include "kernels/stream.hpp"

namespace fourfold::kernels {

namespace {

// 1/sqrt(v), but NaN of an infinity: 0 would pass on a row whose squares overflow as zeros without a gradient, and
// nobody would see it.
template <class A>
KOKKOS_FORCEINLINE_FUNCTION A inverse_root(A v) {
  return (v - v) + A(1) / std::sqrt(v);  // NOLINT(misc-redundant-expression)
}

}  // namespace

template <class T>
void norm_row_sum(const Space& space, Matrix<const T> x, Vector<Acc<T>> sum) {
  const Index columns = x.extent(1);
  Kokkos::parallel_for(
      "norm_row_sum", Range1(space, 0, x.extent(0)), KOKKOS_LAMBDA(const Index r) {
        const T* row = x.data() + r * x.stride(0);
        sum(r) = lane_sum<Acc<T>>(columns, [=](Index j) { return static_cast<Acc<T>>(row[j]); });
      });
}

template <class T>
void norm_row_squares(const Space& space, Matrix<const T> x, Vector<Acc<T>> squares) {
  const Index columns = x.extent(1);
  Kokkos::parallel_for(
      "norm_row_squares", Range1(space, 0, x.extent(0)), KOKKOS_LAMBDA(const Index r) {
        const T* row = x.data() + r * x.stride(0);
        squares(r) = lane_sum<Acc<T>>(columns, [=](Index j) {
          const Acc<T> value = row[j];
          return value * value;
        });
      });
}

template <class T>
void norm_centred_squares(const Space& space, Matrix<const T> x, Vector<const Acc<T>> sum, Index width,
                          Vector<Acc<T>> squares) {
  const Index columns = x.extent(1);
  const Acc<T> whole = static_cast<Acc<T>>(width);
  Kokkos::parallel_for(
      "norm_centred_squares", Range1(space, 0, x.extent(0)), KOKKOS_LAMBDA(const Index r) {
        const T* row = x.data() + r * x.stride(0);
        const Acc<T> mean = sum(r) / whole;
        squares(r) = lane_sum<Acc<T>>(columns, [=](Index j) {
          const Acc<T> centred = row[j] - mean;
          return centred * centred;
        });
      });
}

template <class T>
void layer_norm_forward(const Space& space, Matrix<const T> x, Vector<const Acc<T>> sum, Vector<const Acc<T>> squares,
                        Index width, double eps, Vector<const T> w, Vector<const T> b, Matrix<T> y, Vector<Acc<T>> mean,
                        Vector<Acc<T>> rstd) {
  const Index columns = x.extent(1);
  const bool biased = b.extent(0) > 0;
  const Acc<T> whole = static_cast<Acc<T>>(width);
  const Acc<T> small = static_cast<Acc<T>>(eps);
  const bool around = goes_around_caches<T>(y.data(), y.size(), x.data());
  Kokkos::parallel_for(
      "layer_norm_forward", Range1(space, 0, x.extent(0)), KOKKOS_LAMBDA(const Index r) {
        const T* in = x.data() + r * x.stride(0);
        const T* weight = w.data();
        const T* bias = b.data();
        T* out = y.data() + r * y.stride(0);
        const Acc<T> m = sum(r) / whole;
        const Acc<T> s = inverse_root(squares(r) / whole + small);
        mean(r) = m;
        rstd(r) = s;
        if (biased) {
          write_run(around, columns, out, [=](Index j) { return (in[j] - m) * s * weight[j] + bias[j]; });
        } else {
          write_run(around, columns, out, [=](Index j) { return (in[j] - m) * s * weight[j]; });
        }
      });
  finish_stores_around_caches(around);
}

template <class T>
void rms_norm_forward(const Space& space, Matrix<const T> x, Vector<const Acc<T>> squares, Index width, double eps,
                      Vector<const T> w, Matrix<T> y, Vector<Acc<T>> rstd) {
  const Index columns = x.extent(1);
  const Acc<T> whole = static_cast<Acc<T>>(width);
  const Acc<T> small = static_cast<Acc<T>>(eps);
  const bool around = goes_around_caches<T>(y.data(), y.size(), x.data());
  Kokkos::parallel_for(
      "rms_norm_forward", Range1(space, 0, x.extent(0)), KOKKOS_LAMBDA(const Index r) {
        const T* in = x.data() + r * x.stride(0);
        const T* weight = w.data();
        T* out = y.data() + r * y.stride(0);
        const Acc<T> s = inverse_root(squares(r) / whole + small);
        rstd(r) = s;
        write_run(around, columns, out, [=](Index j) { return in[j] * s * weight[j]; });
      });
  finish_stores_around_caches(around);
}

template <class T>
void norm_backward_sums(const Space& space, Matrix<const T> x, Vector<const Acc<T>> mean, Vector<const Acc<T>> rstd,
                        Vector<const T> w, Matrix<const T> dy, Vector<Acc<T>> c1, Vector<Acc<T>> c2) {
  const Index columns = x.extent(1);
  const bool centred = mean.extent(0) > 0;
  Kokkos::parallel_for(
      "norm_backward_sums", Range1(space, 0, x.extent(0)), KOKKOS_LAMBDA(const Index r) {
        const T* in = x.data() + r * x.stride(0);
        const T* weight = w.data();
        const T* d = dy.data() + r * dy.stride(0);
        const Acc<T> m = centred ? mean(r) : Acc<T>(0);
        if (centred) {
          c1(r) = lane_sum<Acc<T>>(columns, [=](Index j) { return static_cast<Acc<T>>(d[j]) * weight[j]; });
        }
        c2(r) = rstd(r) *
                lane_sum<Acc<T>>(columns, [=](Index j) { return static_cast<Acc<T>>(d[j]) * weight[j] * (in[j] - m); });
      });
}

template <class T>
void norm_backward_input(const Space& space, Matrix<const T> x, Vector<const Acc<T>> mean, Vector<const Acc<T>> rstd,
                         Vector<const T> w, Matrix<const T> dy, Vector<const Acc<T>> c1, Vector<const Acc<T>> c2,
                         Index width, Matrix<T> dx) {
  const Index columns = x.extent(1);
  const bool centred = mean.extent(0) > 0;
  const Acc<T> whole = static_cast<Acc<T>>(width);
  const bool around = goes_around_caches<T>(dx.data(), dx.size(), dy.data());
  Kokkos::parallel_for(
      "norm_backward_input", Range1(space, 0, x.extent(0)), KOKKOS_LAMBDA(const Index r) {
        const T* in = x.data() + r * x.stride(0);
        const T* weight = w.data();
        const T* d = dy.data() + r * dy.stride(0);
        T* out = dx.data() + r * dx.stride(0);
        const Acc<T> m = centred ? mean(r) : Acc<T>(0);
        const Acc<T> s = rstd(r);
        const Acc<T> from_sum = centred ? c1(r) / whole : Acc<T>(0);
        const Acc<T> from_product = s * c2(r) / whole;  // times (x - mean): x^ c2/D
        write_run(around, columns, out,
                  [=](Index j) { return s * (d[j] * weight[j] - from_sum - (in[j] - m) * from_product); });
      });
  finish_stores_around_caches(around);
}

namespace {

// h = x + branch in branch's place; returns the row that is normed.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION const T* normed_row(Index columns, const T* x, T* branch) {
  if (branch == nullptr) return x;
  for (Index j = 0; j < columns; ++j) branch[j] = x[j] + branch[j];
  return branch;
}

}  // namespace

template <class T>
void layer_norm_rows(const Space& space, Matrix<const T> x, Matrix<T> branch, double eps, Vector<const T> w,
                     Vector<const T> b, Matrix<T> y, Vector<Acc<T>> mean, Vector<Acc<T>> rstd) {
  const Index columns = x.extent(1);
  const Acc<T> whole = static_cast<Acc<T>>(columns);
  const Acc<T> small = static_cast<Acc<T>>(eps);
  const bool biased = b.extent(0) > 0;
  T* const branches = branch.data();
  const bool around = goes_around_caches<T>(y.data(), y.size(), x.data());
  Kokkos::parallel_for(
      "layer_norm_rows", Range1(space, 0, x.extent(0)), KOKKOS_LAMBDA(const Index r) {
        const T* in =
            normed_row(columns, x.data() + r * columns, branches == nullptr ? nullptr : branches + r * columns);
        const T* weight = w.data();
        const T* bias = b.data();
        T* out = y.data() + r * columns;
        const Acc<T> m = lane_sum<Acc<T>>(columns, [=](Index j) { return static_cast<Acc<T>>(in[j]); }) / whole;
        const Acc<T> squares = lane_sum<Acc<T>>(columns, [=](Index j) {
          const Acc<T> centred = in[j] - m;
          return centred * centred;
        });
        const Acc<T> s = inverse_root(squares / whole + small);
        mean(r) = m;
        rstd(r) = s;
        if (biased) {
          write_run(around, columns, out, [=](Index j) { return (in[j] - m) * s * weight[j] + bias[j]; });
        } else {
          write_run(around, columns, out, [=](Index j) { return (in[j] - m) * s * weight[j]; });
        }
      });
  finish_stores_around_caches(around);
}

template <class T>
void rms_norm_rows(const Space& space, Matrix<const T> x, Matrix<T> branch, double eps, Vector<const T> w, Matrix<T> y,
                   Vector<Acc<T>> rstd) {
  const Index columns = x.extent(1);
  const Acc<T> whole = static_cast<Acc<T>>(columns);
  const Acc<T> small = static_cast<Acc<T>>(eps);
  T* const branches = branch.data();
  const bool around = goes_around_caches<T>(y.data(), y.size(), x.data());
  Kokkos::parallel_for(
      "rms_norm_rows", Range1(space, 0, x.extent(0)), KOKKOS_LAMBDA(const Index r) {
        const T* in =
            normed_row(columns, x.data() + r * columns, branches == nullptr ? nullptr : branches + r * columns);
        const T* weight = w.data();
        const Acc<T> squares = lane_sum<Acc<T>>(columns, [=](Index j) {
          const Acc<T> value = in[j];
          return value * value;
        });
        const Acc<T> s = inverse_root(squares / whole + small);
        rstd(r) = s;
        write_run(around, columns, y.data() + r * columns, [=](Index j) { return in[j] * s * weight[j]; });
      });
  finish_stores_around_caches(around);
}

template <class T>
void norm_backward_rows(const Space& space, Matrix<const T> x, Vector<const Acc<T>> mean, Vector<const Acc<T>> rstd,
                        Vector<const T> w, Matrix<const T> dy, Matrix<const T> residual, Matrix<T> dx) {
  const Index columns = x.extent(1);
  const bool centred = mean.extent(0) > 0;
  const Acc<T> whole = static_cast<Acc<T>>(columns);
  const T* const residuals = residual.data();
  const bool around = goes_around_caches<T>(dx.data(), dx.size(), dy.data()) && residuals != dx.data();
  Kokkos::parallel_for(
      "norm_backward_rows", Range1(space, 0, x.extent(0)), KOKKOS_LAMBDA(const Index r) {
        const T* in = x.data() + r * columns;
        const T* weight = w.data();
        const T* d = dy.data() + r * columns;
        const T* before = residuals == nullptr ? nullptr : residuals + r * columns;
        T* out = dx.data() + r * columns;
        const Acc<T> m = centred ? mean(r) : Acc<T>(0);
        const Acc<T> s = rstd(r);
        const Acc<T> c1 =
            centred ? lane_sum<Acc<T>>(columns, [=](Index j) { return static_cast<Acc<T>>(d[j]) * weight[j]; })
                    : Acc<T>(0);
        const Acc<T> c2 =
            s * lane_sum<Acc<T>>(columns, [=](Index j) { return static_cast<Acc<T>>(d[j]) * weight[j] * (in[j] - m); });
        const Acc<T> from_sum = c1 / whole;
        const Acc<T> from_product = s * c2 / whole;
        const auto gradient = [=](Index j) { return s * (d[j] * weight[j] - from_sum - (in[j] - m) * from_product); };
        if (before == nullptr) {
          write_run(around, columns, out, gradient);
        } else {
          write_run(around, columns, out, [=](Index j) { return before[j] + gradient(j); });
        }
      });
  finish_stores_around_caches(around);
}

template <class T>
void norm_backward_weight(const Space& space, Matrix<const T> x, Vector<const Acc<T>> mean, Vector<const Acc<T>> rstd,
                          Matrix<const T> dy, Vector<Acc<T>> dw, Vector<Acc<T>> db, Write write) {
  const Index rows = x.extent(0);
  const Index columns = dw.extent(0);
  const Index width = columns_per_task(space, columns);
  const bool centred = mean.extent(0) > 0;
  const bool biased = db.extent(0) > 0;
  const bool add = write == Write::add;
  Kokkos::parallel_for(
      "norm_backward_weight", Range1(space, 0, (columns + width - 1) / width), KOKKOS_LAMBDA(const Index task) {
        const Index first = task * width;
        const Index n = columns - first < width ? columns - first : width;
        Acc<T> sum_w[kMaxColumns];
        Acc<T> sum_b[kMaxColumns];
        for (Index j = 0; j < n; ++j) sum_w[j] = sum_b[j] = Acc<T>(0);
        for (Index r = 0; r < rows; ++r) {
          const T* in = x.data() + r * x.stride(0) + first;
          const T* d = dy.data() + r * dy.stride(0) + first;
          const Acc<T> m = centred ? mean(r) : Acc<T>(0);
          const Acc<T> s = rstd(r);
          if (biased) {
            for (Index j = 0; j < n; ++j) {
              sum_w[j] += d[j] * ((in[j] - m) * s);
              sum_b[j] += d[j];
            }
          } else {
            for (Index j = 0; j < n; ++j) sum_w[j] += d[j] * ((in[j] - m) * s);
          }
        }
        Acc<T>* out_w = dw.data() + first;
        for (Index j = 0; j < n; ++j) out_w[j] = add ? out_w[j] + sum_w[j] : sum_w[j];
        if (biased) {
          Acc<T>* out_b = db.data() + first;
          for (Index j = 0; j < n; ++j) out_b[j] = add ? out_b[j] + sum_b[j] : sum_b[j];
        }
      });
}

#define FOURFOLD_INSTANTIATE(T)                                                                                        \
  template void norm_row_sum<T>(const Space&, Matrix<const T>, Vector<Acc<T>>);                                        \
  template void norm_row_squares<T>(const Space&, Matrix<const T>, Vector<Acc<T>>);                                    \
  template void norm_centred_squares<T>(const Space&, Matrix<const T>, Vector<const Acc<T>>, Index, Vector<Acc<T>>);   \
  template void layer_norm_forward<T>(const Space&, Matrix<const T>, Vector<const Acc<T>>, Vector<const Acc<T>>,       \
                                      Index, double, Vector<const T>, Vector<const T>, Matrix<T>, Vector<Acc<T>>,      \
                                      Vector<Acc<T>>);                                                                 \
  template void rms_norm_forward<T>(const Space&, Matrix<const T>, Vector<const Acc<T>>, Index, double,                \
                                    Vector<const T>, Matrix<T>, Vector<Acc<T>>);                                       \
  template void norm_backward_sums<T>(const Space&, Matrix<const T>, Vector<const Acc<T>>, Vector<const Acc<T>>,       \
                                      Vector<const T>, Matrix<const T>, Vector<Acc<T>>, Vector<Acc<T>>);               \
  template void norm_backward_input<T>(const Space&, Matrix<const T>, Vector<const Acc<T>>, Vector<const Acc<T>>,      \
                                       Vector<const T>, Matrix<const T>, Vector<const Acc<T>>, Vector<const Acc<T>>,   \
                                       Index, Matrix<T>);                                                              \
  template void layer_norm_rows<T>(const Space&, Matrix<const T>, Matrix<T>, double, Vector<const T>, Vector<const T>, \
                                   Matrix<T>, Vector<Acc<T>>, Vector<Acc<T>>);                                         \
  template void rms_norm_rows<T>(const Space&, Matrix<const T>, Matrix<T>, double, Vector<const T>, Matrix<T>,         \
                                 Vector<Acc<T>>);                                                                      \
  template void norm_backward_rows<T>(const Space&, Matrix<const T>, Vector<const Acc<T>>, Vector<const Acc<T>>,       \
                                      Vector<const T>, Matrix<const T>, Matrix<const T>, Matrix<T>);                   \
  template void norm_backward_weight<T>(const Space&, Matrix<const T>, Vector<const Acc<T>>, Vector<const Acc<T>>,     \
                                        Matrix<const T>, Vector<Acc<T>>, Vector<Acc<T>>, Write);
FOURFOLD_INSTANTIATE(float)
FOURFOLD_INSTANTIATE(double)
FOURFOLD_INSTANTIATE(bf16)
#undef FOURFOLD_INSTANTIATE

}  // namespace fourfold::kernels
