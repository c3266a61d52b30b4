#include "train/calibrate.hpp"

#include <algorithm>

#include "base/timer.hpp"
#include "comm/collectives.hpp"
#include "kernels/gemm.hpp"
#include "kernels/vector.hpp"

namespace fourfold {

namespace {

struct ProductShape {
  Index m = 1, n = 1, k = 1;
  double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
};

ProductShape product_shape(const Deck& deck) {
  const ModelDeck& model = deck.model;
  const Index micro = std::max<Index>(1, deck.batch.micro);
  ProductShape shape{micro * std::max<Index>(1, model.sequence), model.ffn.hidden, model.hidden};
  if (model.kind == ModelKind::embedding) shape.n = model.vocab;
  if (model.kind == ModelKind::mlp) {
    shape = {micro, model.widths[1], model.widths[0]};
    for (std::size_t i = 1; i + 1 < model.widths.size(); ++i) {
      if (model.widths[i] * model.widths[i + 1] > shape.n * shape.k)
        shape = {micro, model.widths[i + 1], model.widths[i]};
    }
  }
  constexpr double kMostFlops = 2e8;  // a few milliseconds on one core
  const double row = 2.0 * static_cast<double>(shape.n) * static_cast<double>(shape.k);
  shape.m = std::clamp<Index>(static_cast<Index>(kMostFlops / row), 1, shape.m);
  return shape;
}

}  // namespace

template <class T>
double measure_ceiling(const Deck& deck, const Communicator& world, Pool& pool) {
  const ProductShape shape = product_shape(deck);
  const Space space;
  const Tensor<T> x(pool, MemoryTag::buffers, shape.m, shape.k);
  const Tensor<T> w(pool, MemoryTag::buffers, shape.n, shape.k);
  const Tensor<T> y(pool, MemoryTag::buffers, shape.m, shape.n);
  kernels::fill<T>(space, T{1}, x.vector());
  kernels::fill<T>(space, T{1}, w.vector());
  const auto run = [&] {
    const Stopwatch watch;
    kernels::gemm<T>(space, false, true, shape.m, shape.n, shape.k, x.data(), shape.k, w.data(), shape.k, y.data(),
                     shape.n);
    space.fence();
    return watch.seconds();
  };
  run();  // the library makes its code
  barrier(world, Phase::setup);
  constexpr double kSeconds = 0.1;
  const Stopwatch watch;
  double best = run();
  while (watch.seconds() < kSeconds) best = std::min(best, run());
  double rate = shape.flops() / best;
  all_reduce_sum<double>(world, {&rate, 1}, Summation::fast, Phase::setup);
  return rate;
}

template double measure_ceiling<float>(const Deck&, const Communicator&, Pool&);
template double measure_ceiling<double>(const Deck&, const Communicator&, Pool&);

}  // namespace fourfold
