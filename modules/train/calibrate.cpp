#include "train/calibrate.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "base/timer.hpp"
#include "comm/collectives.hpp"
#include "comm/virtual_clock.hpp"
#include "kernels/gemm.hpp"
#include "kernels/vector.hpp"
#include "tensor/tensor.hpp"

namespace fourfold {

namespace {

// Y = X W^T: m rows, n outputs, k inputs.
struct ProductShape {
  Index m = 1, n = 1, k = 1;
  double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
};

// The matrices of a step as a rank holds them while it multiplies.
std::vector<ProductShape> product_shapes(const Deck& deck) {
  const ModelDeck& model = deck.model;
  const DenseShape& grid = deck.parallel.dense;
  const Index depth = deck.parallel.depth_splits == DepthSplits::sequence ? grid.depth : 1;
  const Index rows = std::max<Index>(1, deck.batch.micro) * std::max<Index>(1, model.sequence) / depth;
  std::vector<ProductShape> shapes;
  // Neighbouring matrices swap the axes that cut them.
  const auto add = [&](Index n, Index k, bool swapped) {
    const Index cut_n = swapped ? grid.col : grid.row, cut_k = swapped ? grid.row : grid.col;
    shapes.push_back({std::max<Index>(1, rows), std::max<Index>(1, n / cut_n), std::max<Index>(1, k / cut_k)});
  };
  if (model.kind == ModelKind::mlp) {
    for (std::size_t i = 0; i + 1 < model.widths.size() && i < 8; ++i) {
      add(model.widths[i + 1], model.widths[i], i % 2 == 1);
    }
    return shapes;
  }
  if (model.kind == ModelKind::residual) {
    add(model.ffn.hidden, model.hidden, false);
    add(model.hidden, model.ffn.hidden, true);
    return shapes;
  }
  if (model.kind == ModelKind::transformer) {
    const Index heads = model.heads * model.head_dim;
    add(heads, model.hidden, false);
    add(model.hidden, heads, true);
    add(model.ffn.hidden, model.hidden, false);
    add(model.hidden, model.ffn.hidden, true);
  }
  add(model.vocab, model.hidden, false);
  return shapes;
}

// Shorter where it would take long: the rate is reached well before.
ProductShape shortened(ProductShape shape) {
  constexpr double kMostFlops = 5e8;  // some milliseconds on one core
  constexpr Index kEnough = 512;
  const auto cut = [&](Index& length) {
    if (shape.flops() <= kMostFlops || length <= kEnough) return;
    length = std::max(kEnough, static_cast<Index>(static_cast<double>(length) * kMostFlops / shape.flops()));
  };
  cut(shape.n);
  cut(shape.m);
  cut(shape.k);
  return shape;
}

// FLOP/s of the three products of a layer, the fastest.
template <class T>
double best_rate(const ProductShape& shape, Pool& pool) {
  const Space space;
  const Tensor<T> x(pool, MemoryTag::buffers, shape.m, shape.k);
  const Tensor<T> w(pool, MemoryTag::buffers, shape.n, shape.k);
  const Tensor<T> y(pool, MemoryTag::buffers, shape.m, shape.n);
  const Tensor<kernels::Acc<T>> dw(pool, MemoryTag::buffers, shape.n, shape.k);
  for (const Tensor<T>& tensor : {x, w, y}) kernels::fill<T>(space, T{1}, tensor.vector());
  kernels::fill<kernels::Acc<T>>(space, 0, dw.vector());
  const auto time = [&](const auto& product) {
    product();  // the library makes its code
    double best = std::numeric_limits<double>::infinity();
    for (int repeat = 0; repeat < 2; ++repeat) {
      const Stopwatch watch;
      product();
      space.fence();
      best = std::min(best, watch.seconds());
    }
    return best;
  };
  const double forward = time([&] { kernels::linear_forward<T>(space, x.matrix(), w.matrix(), y.matrix()); });
  const double input = time([&] { kernels::linear_backward_input<T>(space, y.matrix(), w.matrix(), x.matrix()); });
  const double weight = time(
      [&] { kernels::linear_backward_weight<T>(space, y.matrix(), x.matrix(), dw.matrix(), kernels::Write::add); });
  return shape.flops() / std::min({forward, input, weight});
}

}  // namespace

template <class T>
double measure_ceiling(const Deck& deck, const Communicator& world) {
  MemoryLedger memory;  // of its own: none of it is the step's
  Pool pool(memory);
  barrier(world, Phase::setup);  // all cores are busy
  double rate = 0;
  for (const ProductShape& shape : product_shapes(deck)) rate = std::max(rate, best_rate<T>(shortened(shape), pool));
  all_reduce_sum<double>(world, {&rate, 1}, Summation::fast, Phase::setup);
  return rate;
}

template <class T>
Ceiling find_ceiling(const Deck& deck, const Communicator& world, bool measure) {
  if (measure) return {measure_ceiling<T>(deck, world), "measured at start"};
  if (!deck.run.description) return {0, "none; --calibrate measures one, run.machine names one"};
  const Machine& machine = *deck.run.description;
  return {static_cast<double>(machine.flops(kNumberType<T>)) * world.size(),
          "said of " + machine.name + " by " + deck.run.machine};
}

template Ceiling find_ceiling<float>(const Deck&, const Communicator&, bool);
template Ceiling find_ceiling<double>(const Deck&, const Communicator&, bool);
template Ceiling find_ceiling<kernels::bf16>(const Deck&, const Communicator&, bool);
template double measure_ceiling<float>(const Deck&, const Communicator&);
template double measure_ceiling<double>(const Deck&, const Communicator&);
template double measure_ceiling<kernels::bf16>(const Deck&, const Communicator&);

}  // namespace fourfold
