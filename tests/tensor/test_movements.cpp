// Every movement against its adjoint: <F x, y> = <x, F* y> to 1e-13 in fp64, an element that a partition replicates
// counting once; and against what it should move, bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "comm/launch.hpp"
#include "comm/ledger.hpp"
#include "mpi_test.hpp"
#include "tensor/layout.hpp"
#include "tensor/movement.hpp"
#include "tensor/repartition.hpp"

namespace fourfold {
namespace {

const Communicator& world() {
  return test::launch().world();
}

double sum_over_ranks(double value) {
  all_reduce_sum<double>(world(), {&value, 1}, Summation::deterministic, Phase::control);
  return value;
}

struct Data {
  MemoryLedger ledger;
  Pool pool{ledger};
  std::mt19937_64 engine{static_cast<std::uint64_t>(17 + world().rank())};

  Tensor<double> random(Index rows, Index cols) {
    Tensor<double> x(pool, MemoryTag::buffers, rows, cols);
    std::normal_distribution<double> normal;
    for (Index i = 0; i < x.size(); ++i) x.data()[i] = normal(engine);
    return x;
  }
  Tensor<double> clone(const Tensor<double>& x) {
    Tensor<double> y(pool, MemoryTag::buffers, x.rows(), x.cols());
    std::copy(x.data(), x.data() + x.size(), y.data());
    return y;
  }
};

double dot(const Tensor<double>& a, const Tensor<double>& b) {
  double sum = 0;
  for (Index i = 0; i < a.size(); ++i) sum += a.data()[i] * b.data()[i];
  return sum;
}

// How far <F x, y> and <x, F* y>, summed over the ranks, are apart; 1e-13 is rounding.
double gap(double left, double right, double scale) {
  return std::abs(sum_over_ranks(left) - sum_over_ranks(right)) / std::max(1.0, sum_over_ranks(scale));
}

void expect_adjoint(double left, double right, double scale) {
  EXPECT_LE(gap(left, right, scale), 1e-13);
}

// Copy: x is one tensor that all ranks hold; its replicas count once on the left of the identity's domain.
TEST(Movements, CopyAndSum) {
  for (const Summation summation : {Summation::fast, Summation::deterministic}) {
    for (const Index rows : {Index{0}, Index{1}, Index{7}}) {
      Data data;
      Data same;  // equal on all ranks
      same.engine.seed(5);
      const Tensor<double> x = same.random(rows, 3);
      const Tensor<double> y = data.random(rows, 3);
      const Tensor<double> dx = data.clone(y);
      Copy<double>(world(), summation).adjoint(dx);
      expect_adjoint(dot(x, y), world().rank() == 0 ? dot(x, dx) : 0, dot(x, x) + dot(y, y));

      const Tensor<double> partial = data.random(rows, 3);
      const Tensor<double> total = data.clone(partial);
      Sum<double>(world(), summation).forward(total);
      const Tensor<double> g = same.random(rows, 3);  // the output's replicas count once
      expect_adjoint(world().rank() == 0 ? dot(total, g) : 0, dot(partial, g), dot(g, g) + dot(partial, partial));
    }
  }
}

TEST(Movements, Gather) {
  for (const Summation summation : {Summation::fast, Summation::deterministic}) {
    for (const Index total : {Index{0}, Index{1}, Index{5}, Index{23}}) {
      Data data;
      const Range mine = part(total, world().size(), world().rank());
      const Gather<double> gather(world(), total, summation);
      const Tensor<double> x = data.random(1, mine.size());
      const Tensor<double> whole = data.random(1, total);
      gather.start_forward(x.vector(), whole.vector(), Phase::forward).wait();
      const Tensor<double> y = data.random(1, total);
      const Tensor<double> dx = data.random(1, mine.size());
      gather.start_adjoint(y.vector(), dx.vector()).wait();
      expect_adjoint(dot(whole, y), dot(x, dx), dot(whole, whole) + dot(y, y));
    }
  }
}

// Value of a logical element, the same on every rank.
double element(Index i) {
  return std::sin(static_cast<double>(i) * 0.7) + 2;
}

void fill_box(const Box& box, const std::vector<std::int64_t>& shape, const std::function<void(Index, Index)>& put) {
  const Shard shard{shape, box, {0, box_size(box)}};
  for (Index i = 0; i < shard.size(); ++i) put(i, shard.global_index(i));
}

void check_repartition(const std::vector<std::int64_t>& shape, const std::vector<Box>& source,
                       const std::vector<Box>& target) {
  Data data;
  const std::size_t me = static_cast<std::size_t>(world().rank());
  const Repartition<double> movement(world(), data.pool, source, target);
  const Tensor<double> x(data.pool, MemoryTag::buffers, 1, box_size(source[me]));
  fill_box(source[me], shape, [&](Index i, Index global) { x.data()[i] = element(global); });
  const Tensor<double> out = data.random(1, box_size(target[me]));
  CommLedger& ledger = world().ledger();
  ledger.clear();
  const std::int64_t held = data.ledger.live_total();
  data.ledger.reset_peaks();
  movement.forward(x.vector(), out.vector(), Phase::forward);
  // What moves is what no rank has at home, and no rank holds more than its two shards, what it sends (one part of each
  // target at most) and what it receives.
  double missing = 0;
  std::int64_t sends = 0;
  for (std::size_t r = 0; r < target.size(); ++r) {
    missing += static_cast<double>(box_size(target[r]) - box_size(intersect(source[r], target[r])));
    sends += box_size(intersect(source[me], target[r]));
  }
  EXPECT_EQ(sum_over_ranks(static_cast<double>(ledger.total().ring_elements)), missing);
  EXPECT_LE(data.ledger.peak_total() - held, 8 * (sends + box_size(target[me])));
  fill_box(target[me], shape, [&](Index i, Index global) { EXPECT_EQ(out.data()[i], element(global)); });

  const Tensor<double> y = data.random(1, out.size());
  const Tensor<double> dx = data.random(1, x.size());
  movement.adjoint(y.vector(), dx.vector(), Phase::backward);
  // A replicated source element counts once: on the first rank that holds the box.
  bool first = true;
  for (std::size_t r = 0; r < me; ++r) first = first && source[r] != source[me];
  expect_adjoint(dot(out, y), first ? dot(x, dx) : 0, dot(out, out) + dot(y, y));
}

std::vector<Box> on_first(std::vector<Box> boxes, std::size_t dims) {
  boxes.resize(static_cast<std::size_t>(world().size()), Box(dims, Range{0, 0}));
  return boxes;
}

TEST(Movements, RepartitionAnyToAny) {
  const int ranks = world().size();
  for (const std::vector<std::int64_t>& shape :
       std::vector<std::vector<std::int64_t>>{{7, 5}, {1, 3}, {13, 2}, {4, 3, 5}, {2, 3, 2, 3, 2}}) {
    const std::size_t dims = shape.size();
    std::vector<std::vector<Box>> layouts;
    for (std::size_t d = 0; d < dims; ++d) layouts.push_back(cut_along(shape, d, ranks));
    layouts.push_back(on_first({whole_box(shape)}, dims));                                   // one rank holds all
    layouts.push_back(std::vector<Box>(static_cast<std::size_t>(ranks), whole_box(shape)));  // all hold all
    if (ranks >= 3) layouts.push_back(on_first(cut_along(shape, dims - 1, 3), dims));        // fewer workers
    for (const auto& source : layouts) {
      for (const auto& target : layouts) check_repartition(shape, source, target);
    }
  }
}

// The example of the linear-algebra paper: x on 1 x 4, y on 1 x 3, of 12 workers.
TEST(Movements, DifferentWorkerSets) {
  if (world().size() < 4) GTEST_SKIP() << "NOT TESTED in this launch: those of 4 and more ranks run it";
  const std::vector<std::int64_t> shape{1, 11};
  check_repartition(shape, on_first(cut_along(shape, 1, 4), 2), on_first(cut_along(shape, 1, 3), 2));
  check_repartition(shape, on_first(cut_along(shape, 1, 3), 2), on_first(cut_along(shape, 1, 4), 2));
}

TEST(Movements, Halo) {
  const int ranks = world().size();
  for (const Index length : {Index{3}, Index{8}, Index{21}}) {
    for (const auto& [left, right] : {std::pair<Index, Index>{1, 1}, {2, 0}, {0, 3}, {4, 1}}) {
      check_repartition({length, 2}, cut_along({length, 2}, 0, ranks),
                        halo_windows({length, 2}, 0, ranks, left, right));
      check_repartition({2, length}, cut_along({2, length}, 1, ranks),
                        halo_windows({2, length}, 1, ranks, left, right));
    }
  }
}

// An adjoint that overwrote instead of adding would keep one contribution of those a replicated element gets.
TEST(Movements, AdjointAdds) {
  const int ranks = world().size();
  const std::vector<std::int64_t> shape{3};
  Data data;
  const auto source = on_first({whole_box(shape)}, 1);
  const std::vector<Box> everywhere(static_cast<std::size_t>(ranks), whole_box(shape));
  const Repartition<double> broadcast_to_all(world(), data.pool, source, everywhere);
  const Tensor<double> y(data.pool, MemoryTag::buffers, 1, 3);
  for (Index i = 0; i < 3; ++i) y.data()[i] = world().rank() + 1;
  const Tensor<double> dx = data.random(1, world().rank() == 0 ? 3 : 0);
  broadcast_to_all.adjoint(y.vector(), dx.vector(), Phase::backward);
  for (Index i = 0; i < dx.size(); ++i) EXPECT_EQ(dx.data()[i], ranks * (ranks + 1) / 2);
}

// What the identity is worth: an adjoint that overwrites, so that of the contributions to a replicated element the last
// one stays, is far from it wherever windows overlap.
TEST(Movements, TheIdentityCatchesAnAdjointThatOverwrites) {
  const int ranks = world().size();
  if (ranks < 2) GTEST_SKIP() << "NOT TESTED in this launch: those of 2 and more ranks run it";
  const std::vector<std::int64_t> shape{21};
  Data data;
  const std::vector<Box> parts = cut_along(shape, 0, ranks), windows = halo_windows(shape, 0, ranks, 1, 1);
  const std::size_t me = static_cast<std::size_t>(world().rank());
  const Repartition<double> halo(world(), data.pool, parts, windows);
  const Tensor<double> x = data.random(1, box_size(parts[me])), out = data.random(1, box_size(windows[me]));
  halo.forward(x.vector(), out.vector(), Phase::forward);
  const Tensor<double> y = data.random(1, out.size()), dx = data.random(1, x.size());
  halo.adjoint(y.vector(), dx.vector(), Phase::backward);
  EXPECT_LE(gap(dot(out, y), dot(x, dx), dot(out, out) + dot(y, y)), 1e-13);
  // The same, overwriting: each rank keeps its own window's contribution and loses its neighbours'.
  for (Index i = 0; i < dx.size(); ++i) dx.data()[i] = y.data()[i + parts[me][0].begin - windows[me][0].begin];
  EXPECT_GT(gap(dot(out, y), dot(x, dx), dot(out, out) + dot(y, y)), 1e-6);
}

// Tokens cut over ranks, in one and in two ranges, and columns: gather then compare; and the adjoint.
TEST(Movements, LayoutGather) {
  const int ranks = world().size();
  for (const Index sequences : {Index{0}, Index{1}, Index{3}}) {
    for (const Index tokens : {Index{1}, Index{5}, Index{16}}) {
      for (const int kind : {0, 1, 2}) {
        const Index width = 6;
        std::vector<TokenLayout> parts;
        for (int r = 0; r < ranks; ++r) {
          TokenLayout layout;
          layout.width = width;
          if (kind == 0) layout.blocks = {{{0, sequences}, part(tokens, ranks, r), {0, width}}};
          if (kind == 1) {
            layout.blocks = {{{0, sequences}, part(tokens, 2 * ranks, r), {0, width}},
                             {{0, sequences}, part(tokens, 2 * ranks, 2 * ranks - 1 - r), {0, width}}};
          }
          if (kind == 2) {
            const Range cols = part(width, ranks, r);
            layout.width = cols.size();
            layout.blocks = {{{0, sequences}, {0, tokens}, cols}};
          }
          parts.push_back(layout);
        }
        TokenLayout whole;
        whole.width = width;
        whole.blocks = {{{0, sequences}, {0, tokens}, {0, width}}};
        Data data;
        const LayoutGather<double> movement(world(), data.pool, parts, whole, Summation::deterministic);
        const TokenLayout& mine = parts[static_cast<std::size_t>(world().rank())];
        const Tensor<double> x(data.pool, MemoryTag::buffers, mine.rows(), mine.width);
        const Tensor<double> reference(data.pool, MemoryTag::buffers, whole.rows(), width);
        for (Index i = 0; i < reference.size(); ++i) reference.data()[i] = element(i);
        copy_layout<double>(whole, reference.vector(), mine, x.vector());
        const Tensor<double> out = movement.gather(x, Phase::forward);
        for (Index i = 0; i < out.size(); ++i) EXPECT_EQ(out.data()[i], reference.data()[i]);
        const Tensor<double> y = data.random(whole.rows(), width);
        const Tensor<double> dx = movement.scatter_sum(y, Phase::backward);
        ASSERT_EQ(dx.size(), x.size());
        expect_adjoint(dot(out, y), dot(x, dx), dot(out, out) + dot(y, y));
      }
    }
  }
}

}  // namespace
}  // namespace fourfold
