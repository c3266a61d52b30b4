// Prints each kernel's rate beside its ceiling: products beside the fastest product found here, the rest beside the
// copy bandwidth of arrays of the same size. Bytes are those a kernel must read and write once. The machine may be
// busy: a kernel and its ceiling take turns, and what is printed are the median and the quartiles of their ratios.
//
//   bench_kernels [ROWS [NAME]]   arrays of ROWS x 768 fp32 or half as many rows of fp64, by default 65536: 200 MB,
//                                 beyond the caches; 64 rows stay in them and show the cost of the arithmetic.
//                                 NAME: only kernels whose name begins so
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/activation.hpp"
#include "kernels/attention.hpp"
#include "kernels/bias.hpp"
#include "kernels/dropout.hpp"
#include "kernels/embedding.hpp"
#include "kernels/expert_rows.hpp"
#include "kernels/gemm.hpp"
#include "kernels/lanes.hpp"
#include "kernels/loss.hpp"
#include "kernels/norm.hpp"
#include "kernels/permute.hpp"
#include "kernels/rotary.hpp"
#include "kernels/router.hpp"
#include "kernels/update.hpp"
#include "kernels/vector.hpp"

namespace fourfold::kernels {
namespace {

double seconds_of(int calls, const std::function<void()>& call) {
  using Clock = std::chrono::steady_clock;
  const auto before = Clock::now();
  for (int i = 0; i < calls; ++i) call();
  Space().fence();
  return std::chrono::duration<double>(Clock::now() - before).count();
}

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
}

struct Timing {
  double seconds = 0;                   // median
  double share = 0, low = 0, high = 0;  // of the ceiling's rate: median and quartiles
};

// `call` in turns with `ceiling`; works: what each does, in the same unit.
Timing measure(double work, const std::function<void()>& call, double ceiling_work,
               const std::function<void()>& ceiling) {
  const auto calls_in_turn = [](const std::function<void()>& each) {  // short calls are timed together
    each();
    return static_cast<int>(std::clamp(1e-3 / seconds_of(1, each), 1.0, 1000.0));
  };
  const int calls = calls_in_turn(call), ceilings = calls_in_turn(ceiling);
  std::vector<double> seconds, shares;
  double spent = 0;
  while (seconds.size() < 7 || (spent < 0.4 && seconds.size() < 101)) {
    const double limit = seconds_of(ceilings, ceiling), mine = seconds_of(calls, call);
    seconds.push_back(mine / calls);
    shares.push_back(work * calls / mine / (ceiling_work * ceilings / limit));
    spent += mine + limit;
  }
  return {quantile(seconds, 0.5), quantile(shares, 0.5), quantile(shares, 0.25), quantile(shares, 0.75)};
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

// The ceiling of the kernels that stream: memcpy, which goes around the caches where the arrays are large.
class Report {
 public:
  Report(std::size_t bytes, std::string name) : from_(bytes), to_(bytes), name_(std::move(name)) {}

  bool wants(const std::string& name) const { return name.compare(0, name_.size(), name_) == 0; }

  void line(const std::string& name, double bytes, const std::function<void()>& call) const {
    if (!wants(name)) return;
    const double size = static_cast<double>(from_.vector().size());
    const Timing t =
        measure(bytes, call, 2 * size, [&] { std::memcpy(to_.data(), from_.data(), from_.vector().size()); });
    std::printf("%-24s %7.2f GB/s     %5.2f of copy  (%.2f to %.2f)\n", name.c_str(), 1e-9 * bytes / t.seconds, t.share,
                t.low, t.high);
    std::fflush(stdout);
  }

 private:
  Array<std::int8_t> from_, to_;
  std::string name_;
};

struct ProductShape {
  bool transpose_a, transpose_b;
  Index m, n, k;

  double flops() const { return 2.0 * static_cast<double>(m * n * k); }
};

template <class T>
class Product {
 public:
  explicit Product(const ProductShape& shape)
      : shape_(shape), a_(shape.m * shape.k), b_(shape.k * shape.n), c_(shape.m * shape.n) {}

  void operator()() const {
    const ProductShape& s = shape_;
    gemm<T>(Space(), s.transpose_a, s.transpose_b, s.m, s.n, s.k, a_.data(), s.transpose_a ? s.m : s.k, b_.data(),
            s.transpose_b ? s.k : s.n, c_.data(), s.n);
  }

 private:
  ProductShape shape_;
  Array<T> a_, b_, c_;
};

// The shape of the fastest product.
template <class T>
ProductShape products(const char* type, const std::string& name) {
  const std::vector<ProductShape> shapes{
      {false, true, 2048, 3072, 768}, {false, true, 2048, 768, 3072}, {false, true, 2048, 768, 768},
      {false, false, 2048, 768, 768}, {true, false, 768, 768, 2048},  {false, true, 2048, 768, 192},
      {false, true, 2048, 192, 768},  {false, false, 2048, 192, 768}, {true, false, 192, 768, 2048},
      {false, true, 2048, 192, 192},  {false, true, 512, 192, 192},   {false, true, 64, 192, 192},
      {false, true, 64, 64, 64},      {false, true, 32, 32, 32},      {false, true, 1, 768, 768}};
  const ProductShape reference{false, true, 512, 192, 192};
  if (std::string("gemm").compare(0, name.size(), name) != 0) return reference;
  std::vector<double> rates;
  for (const ProductShape& s : shapes) {
    const Product<T> product(s), ceiling(reference);
    rates.push_back(measure(s.flops(), product, reference.flops(), ceiling).share);
  }
  const auto best = std::max_element(rates.begin(), rates.end());
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const ProductShape& s = shapes[i];
    std::printf("gemm %s %c%c %5ld %5ld %5ld   %5.2f of the best product\n", type, s.transpose_a ? 'T' : 'N',
                s.transpose_b ? 'T' : 'N', static_cast<long>(s.m), static_cast<long>(s.n), static_cast<long>(s.k),
                rates[i] / *best);
  }
  return shapes[static_cast<std::size_t>(best - rates.begin())];
}

// Causal, rows of 768 elements with 12 heads of 64 or 6 of 128 (in long sequences some of them are computed); FLOPs are
// those of the pairs on and below the diagonal.
template <class T>
void attention(const char* type, const ProductShape& best, const std::string& name) {
  if (std::string("attention").compare(0, name.size(), name) != 0) return;
  const Space space;
  const Product<T> product(best);
  for (const Index d : {Index{64}, Index{128}}) {
    for (const Index tokens : {Index{128}, Index{256}, Index{512}, Index{1024}, Index{2048}, Index{4096}}) {
      const Index width = 768, batch = std::max<Index>(1, 1024 / tokens), rows = batch * tokens;
      const Index heads = std::max<Index>(1, width / d * 1024 / std::max<Index>(1024, tokens));
      AttentionShape shape;
      shape.batch = batch;
      shape.query_tokens = tokens;
      shape.key_tokens = tokens;
      shape.head_dim = d;
      shape.scale = 0.125;
      const Array<T> q(rows * width), k(rows * width), v(rows * width), out(rows * width), dout(rows * width),
          dq(rows * width), dk(rows * width), dv(rows * width);
      const Array<Acc<T>> scratch(attention_scratch<T>(shape));
      const Array<Acc<T>> lse(batch * heads * tokens);
      const auto in = [&](const Array<T>& x) { return Heads<const T>{x.data(), width, heads}; };
      const auto to = [&](const Array<T>& x) { return Heads<T>{x.data(), width, heads}; };
      const double pairs = 0.5 * static_cast<double>(batch * heads * tokens * (tokens + 1) * d);
      const auto forward = [&] {
        attention_forward<T>(space, shape, in(q), in(k), in(v), to(out), lse.vector(), scratch.vector());
      };
      const auto backward = [&] {
        attention_backward<T>(space, shape, in(q), in(k), in(v), in(out), lse.vector(), in(dout), to(dq), to(dk),
                              to(dv), scratch.vector());
      };
      const auto both = [&] {
        forward();
        backward();
      };
      const auto line = [&](const char* what, double flops, const std::function<void()>& call) {
        const Timing t = measure(flops, call, best.flops(), product);
        std::printf("attention_%-8s %s d %3ld T %4ld %6.1f GFLOP/s  %5.2f of the best product  (%.2f to %.2f)\n", what,
                    type, static_cast<long>(d), static_cast<long>(tokens), 1e-9 * flops / t.seconds, t.share, t.low,
                    t.high);
        std::fflush(stdout);
      };
      line("forward", 4 * pairs, forward);
      line("backward", 10 * pairs, backward);
      line("both", 14 * pairs, both);
      std::printf("attention_memory   %s d %3ld T %4ld: %ld bytes of statistics a head, %ld of workspace\n", type,
                  static_cast<long>(d), static_cast<long>(tokens),
                  static_cast<long>(tokens * static_cast<Index>(sizeof(Acc<T>))),
                  static_cast<long>(attention_scratch<T>(shape) * static_cast<Index>(sizeof(Acc<T>))));
    }
  }
}

template <class T>
Weights<T> weights_of(const Array<Acc<T>>& master, const Array<T>& values) {
  if constexpr (kStoredAsComputed<T>) {
    return values.vector();
  } else {
    return {master.vector(), values.vector()};
  }
}

template <class T>
void streams(Index rows, Index width, const Report& report) {
  const Space space;
  const Index n = rows * width;
  const double size = static_cast<double>(n) * sizeof(T);
  const Array<T> x(n), y(n), z(n), u(n);
  const Array<T> w(width), b(width);
  const Array<Acc<T>> dw(width), db(width);
  const Array<Acc<T>> total(rows), squares(rows), mean(rows), rstd(rows), c1(rows), c2(rows);
  const auto mx = x.matrix(rows, width), my = y.matrix(rows, width), mz = z.matrix(rows, width);
  const Kokkos::View<std::int32_t*, Space::memory_space> ids("ids", rows);
  Kokkos::parallel_for(
      "ids", Range1(space, 0, rows), KOKKOS_LAMBDA(const Index r) { ids(r) = static_cast<std::int32_t>(r * 7 % 257); });
  const Vector<const std::int32_t> tokens(ids.data(), ids.size());
  const Array<T> table(257 * width);
  const Array<Acc<T>> dtable(257 * width);
  const Array<Acc<T>> grad(n), first(n), second(n), master(n);

  double sink = 0;
  report.line("(a loop that only reads)", size, [&] {
    const T* values = x.data();
    sink += static_cast<double>(lane_sum<Acc<T>>(n, [=](Index i) { return Acc<T>(values[i]); }));
  });
  if (sink == 1.0) std::printf("\n");  // the sum is used
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
              [&] { embedding_backward<T>(space, tokens, mx, 0, dtable.matrix(257, width)); });
  report.line("position_forward", 2 * size, [&] {
    position_forward<T>(space, table.matrix(256, width), {256, 0}, my);
  });
  report.line("position_backward", size, [&] { position_backward<T>(space, mx, {256, 0}, dtable.matrix(256, width)); });
  report.line("rotary_forward", 2 * size, [&] { rotary_forward<T>(space, width / 64, 64, 0, {1024, 0}, 10000.0, mz); });
  report.line("dropout_forward", 2 * size, [&] {
    dropout_forward<T>(space, mx, RandomStream{7, 1}, 0.1, GlobalRows{0, 1024, 0, 1024, 0, width}, my);
  });

  report.line("dropout_in_place", 2 * size, [&] {
    dropout_forward<T>(space, my, RandomStream{7, 1}, 0.1, GlobalRows{0, 1024, 0, 1024, 0, width}, my);
  });

  // Half of the columns into a buffer of their own, as a repartition packs them, and rows of heads to heads of rows.
  BoxCopy columns;
  columns.n0 = 1;
  columns.n1 = rows;
  columns.n2 = width / 2;
  columns.from_stride1 = width;
  columns.to_stride1 = width / 2;
  report.line("copy_box columns", size, [&] { copy_box<T>(space, columns, x.vector(), y.vector()); });
  report.line("add_box columns", 1.5 * size, [&] { add_box<T>(space, columns, x.vector(), y.vector()); });
  BoxCopy heads;
  heads.n0 = width / 64;
  heads.n1 = rows;
  heads.n2 = 64;
  heads.from_stride0 = 64;
  heads.from_stride1 = width;
  heads.to_stride0 = rows * 64;
  heads.to_stride1 = 64;
  report.line("copy_box heads", 2 * size, [&] { copy_box<T>(space, heads, x.vector(), y.vector()); });
  report.line("add_box heads", 3 * size, [&] { add_box<T>(space, heads, x.vector(), y.vector()); });

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

  report.line("layer_norm_rows", 2 * size, [&] {
    layer_norm_rows<T>(space, mx, {}, 1e-5, w.vector(), b.vector(), my, mean.vector(), rstd.vector());
  });
  report.line("layer_norm_rows branch", 4 * size, [&] {
    layer_norm_rows<T>(space, mx, mz, 1e-5, w.vector(), b.vector(), my, mean.vector(), rstd.vector());
  });
  report.line("rms_norm_rows branch", 4 * size,
              [&] { rms_norm_rows<T>(space, mx, mz, 1e-5, w.vector(), my, rstd.vector()); });
  report.line("norm_backward_rows", 4 * size, [&] {
    norm_backward_rows<T>(space, mx, mean.vector(), rstd.vector(), w.vector(), my, u.matrix(rows, width), mz);
  });

  const Array<double> losses(rows);
  const Vector<double> loss = losses.vector();
  const Index vocab = 50304, samples = std::max<Index>(1, n / vocab);
  if (samples * vocab <= n) {
    const auto logits = x.matrix(samples, vocab), dlogits = z.matrix(samples, vocab);
    const Vector<const std::int32_t> goals(ids.data(), static_cast<std::size_t>(samples));
    const double bytes = static_cast<double>(samples * vocab) * sizeof(T);
    report.line("cross_entropy_max", bytes, [&] { cross_entropy_max<T>(space, logits, c1.vector()); });
    report.line("cross_entropy_sums", bytes,
                [&] { cross_entropy_sums<T>(space, logits, c1.vector(), goals, 0, total.vector(), c2.vector()); });
    report.line("cross_entropy_backward", 2 * bytes, [&] {
      cross_entropy_backward<T>(space, logits, c1.vector(), total.vector(), goals, 0, 1e-3, dlogits);
    });
    report.line("cross_entropy_in_place", 2 * bytes, [&] {
      cross_entropy_backward<T>(space, dlogits, c1.vector(), total.vector(), goals, 0, 1e-3, dlogits);
    });
  }
  report.line("squared_error_forward", 2 * size, [&] { squared_error_forward<T>(space, mx, my, loss); });

  // Gradients and states in Acc<T>; of bf16 the masters are read and written, the values written.
  const double wide = static_cast<double>(n) * sizeof(Acc<T>);
  const double weights = kStoredAsComputed<T> ? 2 * size : 2 * wide + size;
  const Weights<T> moved = weights_of(master, z);
  const auto clear = [&] {
    fill<Acc<T>>(space, Acc<T>(0), first.vector());
    fill<Acc<T>>(space, Acc<T>(0), second.vector());
  };
  clear();
  report.line("sgd_update", wide + weights, [&] { sgd_update<T>(space, grad.vector(), 1.0, 1e-6, 0.1, moved); });
  report.line("momentum_update", 3 * wide + weights,
              [&] { momentum_update<T>(space, grad.vector(), 1.0, 1e-6, 0.9, 0.1, moved, first.vector()); });
  AdamW options;
  options.rate = 1e-6;
  options.decay = 0.1;
  options.step = 3;
  clear();
  report.line("adamw_update", 5 * wide + weights,
              [&] { adamw_update<T>(space, grad.vector(), 1.0, options, moved, first.vector(), second.vector()); });
}

// Two choices a token: the rows of tokens on their way to 64 experts and back.
template <class T>
void expert_rows(Index rows, Index width, const Report& report) {
  const Space space;
  const Index k = 2, experts = 64, pairs = rows, tokens = rows / k;
  const Array<T> x(tokens * width), moved(pairs * width), y(tokens * width);
  const Array<Acc<T>> logits(tokens * experts), scores(tokens * experts), weights(pairs), dots(pairs), lse(tokens),
      total(tokens);
  const Array<std::int32_t> choice(pairs);
  const Array<Index> place(experts), scratch(sort_pairs_scratch(pairs, experts)), position(pairs), order(pairs),
      counts(experts);
  const Vector<Index> places = place.vector();
  const Matrix<Acc<T>> keys = logits.matrix(tokens, experts);
  Kokkos::parallel_for(
      "init", Range1(space, 0, experts), KOKKOS_LAMBDA(const Index e) { places(e) = e; });
  Kokkos::parallel_for(
      "init", Range1(space, 0, tokens), KOKKOS_LAMBDA(const Index t) {
        for (Index e = 0; e < experts; ++e) keys(t, e) = static_cast<Acc<T>>((t * 131 + e * 71) % 997) * Acc<T>(0.004);
      });
  const auto choices = choice.matrix(tokens, k);
  router_top_k<Acc<T>>(space, {}, keys, {}, choices);
  sort_pairs(space, choice.vector(), places, scratch.vector(), position.vector(), order.vector(), counts.vector());
  const auto in = x.matrix(tokens, width), out = y.matrix(tokens, width), all = moved.matrix(pairs, width);
  const Matrix<const Index> at(position.data(), tokens, k);
  const double both = static_cast<double>((tokens + pairs) * width) * sizeof(T);
  const double table = static_cast<double>(tokens * experts) * sizeof(Acc<T>);
  report.line("gather_pairs", both, [&] { gather_pairs<T>(space, in, k, {}, order.vector(), all); });
  report.line("gather_pairs weighted", both,
              [&] { gather_pairs<T>(space, in, k, weights.vector(), order.vector(), all); });
  report.line("combine_pairs_forward", both,
              [&] { combine_pairs_forward<T>(space, all, at, weights.vector(), {}, out); });
  report.line("combine_pairs_backward", both,
              [&] { combine_pairs_backward<T>(space, all, at, in, dots.matrix(tokens, k)); });
  report.line("router_scores", 2 * table, [&] {
    router_scores<Acc<T>>(space, Scores::softmax, keys, scores.matrix(tokens, experts), lse.vector(), total.vector());
  });
  report.line("router_top_k", table, [&] { router_top_k<Acc<T>>(space, {}, keys, {}, choices); });
  report.line("sort_pairs", static_cast<double>(pairs) * (sizeof(std::int32_t) + 2 * sizeof(Index)), [&] {
    sort_pairs(space, choice.vector(), places, scratch.vector(), position.vector(), order.vector(), counts.vector());
  });
}

}  // namespace
}  // namespace fourfold::kernels

int main(int argc, char** argv) {
  using namespace fourfold::kernels;
  const Kokkos::ScopeGuard kokkos(argc, argv);
  const Index width = 768;
  const Index rows = argc > 1 ? std::stol(argv[1]) : 65536;
  const std::string name = argc > 2 ? argv[2] : "";
  attention<float>("fp32", products<float>("fp32", name), name);
  attention<double>("fp64", products<double>("fp64", name), name);
  attention<bf16>("bf16", products<bf16>("bf16", name), name);
  const Report report(static_cast<std::size_t>(rows * width) * sizeof(float), name);
  std::printf("--- fp32, %ld x %ld\n", static_cast<long>(rows), static_cast<long>(width));
  streams<float>(rows, width, report);
  expert_rows<float>(rows, width, report);
  std::printf("--- fp64, %ld x %ld\n", static_cast<long>(rows / 2), static_cast<long>(width));
  streams<double>(rows / 2, width, report);
  expert_rows<double>(rows / 2, width, report);
  std::printf("--- bf16, %ld x %ld\n", static_cast<long>(2 * rows), static_cast<long>(width));
  streams<bf16>(2 * rows, width, report);
  expert_rows<bf16>(2 * rows, width, report);
  return 0;
}
