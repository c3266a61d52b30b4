// Prints each kernel's rate beside its ceiling: products beside the fastest product found here, the rest beside the
// copy bandwidth of arrays of the same size. Bytes are those a kernel must read and write once.
//
//   bench_kernels [ROWS]      arrays of ROWS x 768 fp32 or half as many rows of fp64, by default 16384: 50 MB, beyond
//   the
//                             caches; 64 rows stay in them and show the cost of the arithmetic
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "kernels/activation.hpp"
#include "kernels/attention.hpp"
#include "kernels/bias.hpp"
#include "kernels/dropout.hpp"
#include "kernels/embedding.hpp"
#include "kernels/gemm.hpp"
#include "kernels/loss.hpp"
#include "kernels/norm.hpp"
#include "kernels/rotary.hpp"
#include "kernels/update.hpp"
#include "kernels/vector.hpp"

namespace fourfold::kernels {
namespace {

double best_seconds(const std::function<void()>& call) {
  using Clock = std::chrono::steady_clock;
  call();
  double best = std::numeric_limits<double>::infinity();
  const auto start = Clock::now();
  for (int runs = 0; runs < 5 || Clock::now() - start < std::chrono::milliseconds(250); ++runs) {
    const auto before = Clock::now();
    call();
    Space().fence();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - before).count());
  }
  return best;
}

template <class T>
class Array {
 public:
  explicit Array(Index size) : view_("bench array", size) {
    const Kokkos::View<T*, typename Space::memory_space> values = view_;
    Kokkos::parallel_for(
        "init", Range1(Space(), 0, size),
        KOKKOS_LAMBDA(const Index i) { values(i) = static_cast<T>((i * 2654435761u % 1000u) * 0.002 - 1.0); });
  }
  Vector<T> vector() const { return Vector<T>(view_.data(), view_.size()); }
  Matrix<T> matrix(Index rows, Index cols) const { return Matrix<T>(view_.data(), rows, cols); }
  T* data() const { return view_.data(); }

 private:
  Kokkos::View<T*, typename Space::memory_space> view_;
};

class Report {
 public:
  explicit Report(double copy_rate) : copy_rate_(copy_rate) {}

  void line(const std::string& name, double bytes, const std::function<void()>& call) const {
    const double rate = 1e-9 * bytes / best_seconds(call);
    std::printf("%-24s %7.2f GB/s     %5.2f of copy\n", name.c_str(), rate, rate / copy_rate_);
    std::fflush(stdout);
  }

 private:
  double copy_rate_;
};

struct ProductShape {
  bool transpose_a, transpose_b;
  Index m, n, k;
};

template <class T>
double products(const char* type) {
  const Space space;
  const std::vector<ProductShape> shapes{
      {false, true, 2048, 3072, 768}, {false, true, 2048, 768, 3072}, {false, true, 2048, 768, 768},
      {false, false, 2048, 768, 768}, {true, false, 768, 768, 2048},  {false, true, 2048, 768, 192},
      {false, true, 2048, 192, 768},  {false, false, 2048, 192, 768}, {true, false, 192, 768, 2048},
      {false, true, 2048, 192, 192},  {false, true, 512, 192, 192},   {false, true, 64, 192, 192},
      {false, true, 64, 64, 64},      {false, true, 32, 32, 32},      {false, true, 1, 768, 768}};
  std::vector<double> rates;
  for (const ProductShape& s : shapes) {
    const Array<T> a(s.m * s.k), b(s.k * s.n), c(s.m * s.n);
    const double seconds = best_seconds([&] {
      gemm<T>(space, s.transpose_a, s.transpose_b, s.m, s.n, s.k, a.data(), s.transpose_a ? s.m : s.k, b.data(),
              s.transpose_b ? s.k : s.n, c.data(), s.n);
    });
    rates.push_back(2e-9 * static_cast<double>(s.m * s.n * s.k) / seconds);
  }
  const double ceiling = *std::max_element(rates.begin(), rates.end());
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const ProductShape& s = shapes[i];
    std::printf("gemm %s %c%c %5ld %5ld %5ld %7.1f GFLOP/s  %5.2f of the best product\n", type,
                s.transpose_a ? 'T' : 'N', s.transpose_b ? 'T' : 'N', static_cast<long>(s.m), static_cast<long>(s.n),
                static_cast<long>(s.k), rates[i], rates[i] / ceiling);
  }
  return ceiling;
}

template <class T>
void attention(const char* type, double ceiling) {
  const Space space;
  for (const Index tokens : {Index{128}, Index{1024}}) {
    const Index batch = 2048 / tokens, heads = 12, d = 64, width = heads * d, rows = 2048;
    AttentionShape shape;
    shape.batch = batch;
    shape.query_tokens = tokens;
    shape.key_tokens = tokens;
    shape.head_dim = d;
    shape.scale = 0.125;
    const Array<T> q(rows * width), k(rows * width), v(rows * width), out(rows * width), dout(rows * width),
        dq(rows * width), dk(rows * width), dv(rows * width), scratch(attention_scratch<T>(shape));
    const Array<Acc<T>> lse(batch * heads * tokens);
    const auto in = [&](const Array<T>& x) { return Heads<const T>{x.data(), width, heads}; };
    const auto to = [&](const Array<T>& x) { return Heads<T>{x.data(), width, heads}; };
    const double pairs = 0.5 * static_cast<double>(batch * heads * tokens * (tokens + 1) * d);
    const double forward = best_seconds(
        [&] { attention_forward<T>(space, shape, in(q), in(k), in(v), to(out), lse.vector(), scratch.vector()); });
    const double backward = best_seconds([&] {
      attention_backward<T>(space, shape, in(q), in(k), in(v), in(out), lse.vector(), in(dout), to(dq), to(dk), to(dv),
                            scratch.vector());
    });
    std::printf("attention_forward %s  T %5ld %7.1f GFLOP/s  %5.2f of the best product\n", type,
                static_cast<long>(tokens), 4e-9 * pairs / forward, 4e-9 * pairs / forward / ceiling);
    std::printf("attention_backward %s T %5ld %7.1f GFLOP/s  %5.2f of the best product\n", type,
                static_cast<long>(tokens), 10e-9 * pairs / backward, 10e-9 * pairs / backward / ceiling);
  }
}

double copy_rate(Index n) {
  const Array<float> x(n), y(n);
  const double size = static_cast<double>(n) * sizeof(float);
  return 2e-9 * size / best_seconds([&] { std::memcpy(y.data(), x.data(), static_cast<std::size_t>(size)); });
}

template <class T>
void streams(Index rows, Index width, const Report& report) {
  const Space space;
  const Index n = rows * width;
  const double size = static_cast<double>(n) * sizeof(T);
  const Array<T> x(n), y(n), z(n), u(n);
  const Array<T> w(width), b(width), dw(width), db(width);
  const Array<Acc<T>> total(rows), squares(rows), mean(rows), rstd(rows), c1(rows), c2(rows);
  const auto mx = x.matrix(rows, width), my = y.matrix(rows, width), mz = z.matrix(rows, width);
  const Kokkos::View<std::int32_t*, Space::memory_space> ids("ids", rows);
  Kokkos::parallel_for(
      "ids", Range1(space, 0, rows), KOKKOS_LAMBDA(const Index r) { ids(r) = static_cast<std::int32_t>(r * 7 % 257); });
  const Vector<const std::int32_t> tokens(ids.data(), ids.size());
  const Array<T> table(257 * width);

  report.line("copy", 2 * size, [&] { copy<T>(space, x.vector(), y.vector()); });
  report.line("fill", size, [&] { fill<T>(space, T(0.5), y.vector()); });
  report.line("add", 3 * size, [&] { add<T>(space, x.vector(), y.vector()); });
  report.line("scale", 2 * size, [&] { scale<T>(space, 1.0, x.vector()); });
  report.line("snap", 2 * size, [&] { snap<T>(space, 16, y.vector()); });
  report.line("copy_columns", size, [&] { copy_columns<T>(space, mx, 0, width / 2, mz, width / 2); });
  report.line("sum", size, [&] { sum<T>(space, x.vector()); });
  report.line("sum_squares", size, [&] { sum_squares<T>(space, x.vector()); });
  report.line("max_abs", size, [&] { max_abs<T>(space, x.vector()); });
  report.line("count_nonfinite", size, [&] { count_nonfinite<T>(space, x.vector()); });

  report.line("bias_forward", 2 * size, [&] { bias_forward<T>(space, b.vector(), mz); });
  report.line("bias_backward", size, [&] { bias_backward<T>(space, mx, db.vector(), Write::overwrite); });
  report.line("relu_forward", 2 * size, [&] { relu_forward<T>(space, x.vector(), y.vector()); });
  report.line("relu_backward", 3 * size, [&] { relu_backward<T>(space, x.vector(), y.vector(), z.vector()); });
  report.line("gelu_forward", 2 * size, [&] { gelu_forward<T>(space, x.vector(), y.vector()); });
  report.line("gelu_backward", 3 * size, [&] { gelu_backward<T>(space, x.vector(), y.vector(), z.vector()); });
  report.line("gelu_tanh_forward", 2 * size, [&] { gelu_tanh_forward<T>(space, x.vector(), y.vector()); });
  report.line("gelu_tanh_backward", 3 * size,
              [&] { gelu_tanh_backward<T>(space, x.vector(), y.vector(), z.vector()); });
  const Index half = rows / 2;
  report.line("swiglu_forward", 1.5 * size,
              [&] { swiglu_forward<T>(space, x.matrix(half, 2 * width), y.matrix(half, width)); });
  report.line("swiglu_backward", 2.5 * size, [&] {
    swiglu_backward<T>(space, x.matrix(half, 2 * width), y.matrix(half, width), z.matrix(half, 2 * width));
  });

  report.line("embedding_forward", size, [&] { embedding_forward<T>(space, tokens, table.matrix(257, width), 0, my); });
  report.line("embedding_backward", size,
              [&] { embedding_backward<T>(space, tokens, mx, 0, table.matrix(257, width)); });
  report.line("position_forward", 2 * size, [&] { position_forward<T>(space, table.matrix(256, width), 256, 0, my); });
  report.line("position_backward", size, [&] { position_backward<T>(space, mx, 256, 0, table.matrix(256, width)); });
  report.line("rotary_forward", 2 * size, [&] { rotary_forward<T>(space, width / 64, 64, 0, 1024, 0, 10000.0, mz); });
  report.line("dropout_forward", 2 * size, [&] {
    dropout_forward<T>(space, mx, RandomStream{7, 1}, 0.1, GlobalRows{0, 1024, 0, 1024, 0, width}, my);
  });

  report.line("norm_row_sum", size, [&] { norm_row_sum<T>(space, mx, total.vector()); });
  report.line("norm_row_squares", size, [&] { norm_row_squares<T>(space, mx, squares.vector()); });
  report.line("norm_centred_squares", size,
              [&] { norm_centred_squares<T>(space, mx, total.vector(), width, squares.vector()); });
  report.line("layer_norm_forward", 2 * size, [&] {
    layer_norm_forward<T>(space, mx, total.vector(), squares.vector(), width, 1e-5, w.vector(), b.vector(), my,
                          mean.vector(), rstd.vector());
  });
  report.line("rms_norm_forward", 2 * size,
              [&] { rms_norm_forward<T>(space, mx, squares.vector(), width, 1e-5, w.vector(), my, rstd.vector()); });
  report.line("norm_backward_sums", 2 * size, [&] {
    norm_backward_sums<T>(space, mx, mean.vector(), rstd.vector(), w.vector(), my, c1.vector(), c2.vector());
  });
  report.line("norm_backward_input", 3 * size, [&] {
    norm_backward_input<T>(space, mx, mean.vector(), rstd.vector(), w.vector(), my, c1.vector(), c2.vector(), width,
                           mz);
  });
  report.line("norm_backward_weight", 2 * size, [&] {
    norm_backward_weight<T>(space, mx, mean.vector(), rstd.vector(), my, dw.vector(), db.vector(), Write::overwrite);
  });

  const Vector<double> loss(reinterpret_cast<double*>(u.data()), static_cast<std::size_t>(rows));
  report.line("cross_entropy_max", size, [&] { cross_entropy_max<T>(space, mx, c1.vector()); });
  report.line("cross_entropy_sums", size,
              [&] { cross_entropy_sums<T>(space, mx, c1.vector(), tokens, 0, total.vector(), c2.vector()); });
  report.line("cross_entropy_backward", 2 * size,
              [&] { cross_entropy_backward<T>(space, mx, c1.vector(), total.vector(), tokens, 0, 1e-3, mz); });
  report.line("squared_error_forward", 2 * size, [&] { squared_error_forward<T>(space, mx, my, loss); });

  fill<T>(space, T(0), y.vector());
  fill<T>(space, T(0), u.vector());
  report.line("sgd_update", 3 * size, [&] { sgd_update<T>(space, x.vector(), 1.0, 1e-6, 0.1, z.vector()); });
  report.line("momentum_update", 5 * size,
              [&] { momentum_update<T>(space, x.vector(), 1.0, 1e-6, 0.9, 0.1, z.vector(), y.vector()); });
  AdamW options;
  options.rate = 1e-6;
  options.decay = 0.1;
  options.step = 3;
  fill<T>(space, T(0), y.vector());
  report.line("adamw_update", 7 * size,
              [&] { adamw_update<T>(space, x.vector(), 1.0, options, z.vector(), y.vector(), u.vector()); });
}

}  // namespace
}  // namespace fourfold::kernels

int main(int argc, char** argv) {
  using namespace fourfold::kernels;
  const Kokkos::ScopeGuard kokkos(argc, argv);
  const Index width = 768;
  const Index rows = argc > 1 ? std::stol(argv[1]) : 16384;
  const double best32 = products<float>("fp32");
  attention<float>("fp32", best32);
  const double best64 = products<double>("fp64");
  attention<double>("fp64", best64);
  const double rate = copy_rate(rows * width);
  const Report report(rate);
  std::printf("memcpy %.2f GB/s read and written\n--- fp32, %ld x %ld\n", rate, static_cast<long>(rows),
              static_cast<long>(width));
  streams<float>(rows, width, report);
  std::printf("--- fp64, %ld x %ld\n", static_cast<long>(rows / 2), static_cast<long>(width));
  streams<double>(rows / 2, width, report);
  return 0;
}
