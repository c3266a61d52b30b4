// What a step moves: the ledger against the closed forms of AxoNN's 4D algorithm (Singh et al.,
// "Communication-minimizing asynchronous tensor parallelism", 2023), by integer equality on every factorisation of 8
// ranks, and the MPI calls that really passed against the ledger.
//
// For Y = X W^T, X: m x k, W: n x k, grid Gd x Gz x Gy x Gx (data, depth, row, col), elements sent per rank on a ring:
//
//   all_gather_depth      (Gz-1)     * k n /(Gx Gy Gz)      forward, and again backward
//   all_reduce_col        2(Gx-1)/Gx * m n /(Gd Gz Gy)      forward
//   all_reduce_row        2(Gy-1)/Gy * m k /(Gd Gz Gx)      backward
//   reduce_scatter_depth  (Gz-1)/Gz  * k n /(Gx Gy)         backward
//   all_reduce_data       2(Gd-1)/Gd * k n /(Gx Gy Gz)      once a step
//
// A swapped layer exchanges Gx and Gy.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>

#include "comm/launch.hpp"
#include "comm/ledger.hpp"
#include "comm/pmpi_counter.hpp"
#include "comm/watchdog.hpp"
#include "data/loader.hpp"
#include "grid/process_grid.hpp"
#include "layers/linear.hpp"
#include "mpi_test.hpp"
#include "runs.hpp"
#include "test_support.hpp"
#include "train/trainer.hpp"

namespace fourfold {
namespace {

struct Volume {
  std::int64_t all_gather_depth = 0, all_reduce_in = 0, all_reduce_out = 0, reduce_scatter_depth = 0,
               all_reduce_data = 0;
  Volume& operator+=(const Volume& other) {
    all_gather_depth += other.all_gather_depth;
    all_reduce_in += other.all_reduce_in;
    all_reduce_out += other.all_reduce_out;
    reduce_scatter_depth += other.reduce_scatter_depth;
    all_reduce_data += other.all_reduce_data;
    return *this;
  }
};

struct Product {
  std::int64_t m, k, n;
};

std::int64_t exactly(std::int64_t numerator, std::int64_t denominator) {
  EXPECT_EQ(numerator % denominator, 0) << "choose sizes that divide";
  return numerator / denominator;
}

// gin, gout: the extents of the axes that cut k and n.
Volume closed_form(const Product& p, const DenseShape& g, std::int64_t gin, std::int64_t gout) {
  const std::int64_t gz = g.depth, gd = g.data;
  Volume v;
  v.all_gather_depth = exactly((gz - 1) * p.k * p.n, gin * gout * gz);
  v.all_reduce_in = exactly(2 * (gin - 1) * p.m * p.n, gin * gd * gz * gout);
  v.all_reduce_out = exactly(2 * (gout - 1) * p.m * p.k, gout * gd * gz * gin);
  v.reduce_scatter_depth = exactly((gz - 1) * p.k * p.n, gz * gin * gout);
  v.all_reduce_data = exactly(2 * (gd - 1) * p.k * p.n, gd * gin * gout * gz);
  return v;
}

// What `rank`'s place on an axis of `ranks` sends of an all-reduce or of a gather of `total` elements.
std::int64_t sends(std::int64_t total, int ranks, int place) {
  return total - part(total, ranks, place).size();
}

// The same with sizes that do not divide: exact part sizes. rows: of this rank's batch coordinate.
Volume exact_parts(const Product& p, std::int64_t rows, const Coordinates& here, const DenseShape& g, bool swapped) {
  const Axis in = swapped ? Axis::row : Axis::col, out = swapped ? Axis::col : Axis::row;
  const int gin = swapped ? g.row : g.col, gout = swapped ? g.col : g.row;
  const std::int64_t k = part(p.k, gin, here[in]).size(), n = part(p.n, gout, here[out]).size();
  Volume v;
  v.all_gather_depth = g.depth > 1 ? sends(n * k, g.depth, here[Axis::depth]) : 0;
  v.reduce_scatter_depth = v.all_gather_depth;
  v.all_reduce_in = gin > 1 ? 2 * sends(rows * n, gin, here[in]) : 0;
  v.all_reduce_out = gout > 1 ? 2 * sends(rows * k, gout, here[out]) : 0;
  v.all_reduce_data =
      g.data > 1 ? 2 * sends(part(n * k, g.depth, here[Axis::depth]).size(), g.data, here[Axis::data]) : 0;
  return v;
}

std::int64_t moved(const CommLedger& ledger, Operation operation, std::string_view group, Phase phase) {
  return ledger.sum(operation, group, phase).ring_elements;
}

Volume of_ledger(const CommLedger& ledger, bool swapped) {
  Volume v;
  v.all_gather_depth = moved(ledger, Operation::all_gather, "depth", Phase::forward);
  EXPECT_EQ(v.all_gather_depth, moved(ledger, Operation::all_gather, "depth", Phase::backward)) << "gathered twice";
  v.all_reduce_in = moved(ledger, Operation::all_reduce, swapped ? "row" : "col", Phase::forward);
  v.all_reduce_out = moved(ledger, Operation::all_reduce, swapped ? "col" : "row", Phase::backward);
  v.reduce_scatter_depth = moved(ledger, Operation::reduce_scatter, "depth", Phase::backward);
  v.all_reduce_data = moved(ledger, Operation::all_reduce, "data", Phase::gradient);
  return v;
}

void expect_equal(const Volume& got, const Volume& expected) {
  EXPECT_EQ(got.all_gather_depth, expected.all_gather_depth);
  EXPECT_EQ(got.all_reduce_in, expected.all_reduce_in);
  EXPECT_EQ(got.all_reduce_out, expected.all_reduce_out);
  EXPECT_EQ(got.reduce_scatter_depth, expected.reduce_scatter_depth);
  EXPECT_EQ(got.all_reduce_data, expected.all_reduce_data);
}

// Nothing passes beside the ledger: its bytes are those of the real MPI calls, and what ranks of a node read from each
// other.
void expect_as_mpi_saw_it(const CommLedger& ledger) {
  EXPECT_EQ(ledger.total().ring_bytes, test::mpi_traffic().ring_bytes + ledger.total().bytes_shared);
  EXPECT_EQ(test::mpi_traffic().outside, 0);
}

std::string name(const DenseShape& g) {
  return "data " + std::to_string(g.data) + " depth " + std::to_string(g.depth) + " row " + std::to_string(g.row) +
         " col " + std::to_string(g.col);
}

ProcessGrid grid_of(const DenseShape& g) {
  return ProcessGrid({StageShape{g, MoeShape{.replica = static_cast<int>(g.size())}}});
}

std::vector<DenseShape> grids() {
  return test::sample(dense_factorisations(test::launch().world().size()), 5);
}

// One layer, forward and backward, and the sum of its gradient.
Volume run_layer(const Product& p, const DenseShape& g, bool swapped, Summation summation,
                 SharedMemoryUse shared = SharedMemoryUse::automatic) {
  const Communicator& world = test::launch().world();
  const GridComms comms(world, grid_of(g), dense_axis_sets());
  MemoryLedger memory;
  Pool pool(memory, test::shared_blocks(shared));
  ParamStore<double> store;
  Deferred deferred(2);
  GatherQueue<double> gathers;
  LayerOptions options;
  options.summation = summation;
  const LayerContext<double> context{comms, pool, store, options, deferred, gathers};
  const Orientation orientation = swapped ? Orientation{}.swapped() : Orientation{};
  const Linear<double> layer(context,
                             {even_segment(context, "w.weight", p.n, orientation.out, constant_initializer(0.5))}, p.k,
                             {orientation, false, true});
  store.allocate(pool);
  Deck deck;
  deck.numerics.deterministic = summation == Summation::deterministic;
  const UpdatePlan plan(deck, comms, store);
  const int coordinates = g.data * g.depth;
  const int mine = comms.here()[Axis::data] * g.depth + comms.here()[Axis::depth];
  const Index rows = part(p.m, coordinates, mine).size();
  const Tensor<double> x(pool, MemoryTag::activations, rows, context.part_of(p.k, orientation.in).size());
  Kokkos::deep_copy(x.vector(), 1.0);

  CommLedger& ledger = world.ledger();
  ledger.clear();
  test::clear_mpi_traffic();
  Linear<double>::Kept kept;
  const Tensor<double> y = layer.forward(x, &kept);
  layer.backward_input(y, kept);
  layer.backward_weight(kept);
  deferred.finish();
  Reducer<double>(deck, plan, comms, store).reduce();
  expect_as_mpi_saw_it(ledger);
  expect_equal(of_ledger(ledger, swapped), exact_parts(p, rows, comms.here(), g, swapped));
  return of_ledger(ledger, swapped);
}

TEST(Ledger, LinearLayerMovesTheClosedForms) {
  for (const Product& p : {Product{64, 32, 16}, Product{128, 64, 64}, Product{96, 16, 128}}) {
    for (const DenseShape& g : grids()) {
      for (const bool swapped : {false, true}) {
        for (const Summation summation : {Summation::fast, Summation::deterministic}) {
          SCOPED_TRACE(name(g) + (swapped ? " swapped" : "") + " m " + std::to_string(p.m));
          const Volume expected = closed_form(p, g, swapped ? g.row : g.col, swapped ? g.col : g.row);
          expect_equal(run_layer(p, g, swapped, summation), expected);
          const CommSums moved = test::launch().ledger().total();
          EXPECT_EQ(moved.bytes_shared, test::launch().shared_memory() != nullptr ? moved.ring_bytes : 0);
          expect_equal(run_layer(p, g, swapped, summation, SharedMemoryUse::off), expected);
          EXPECT_EQ(test::launch().ledger().total().bytes_shared, 0);
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

// Singh et al.'s example: col 2, row 2, depth 2, data 1.
TEST(Ledger, WorkedExample) {
  const Volume v = run_layer({64, 32, 16}, {.data = 1, .depth = 2, .row = 2, .col = 2}, false, Summation::fast);
  EXPECT_EQ(v.all_gather_depth, 64);
  EXPECT_EQ(v.all_reduce_in, 256);
  EXPECT_EQ(v.all_reduce_out, 512);
  EXPECT_EQ(v.reduce_scatter_depth, 64);
  EXPECT_EQ(v.all_reduce_data, 0);
}

// Sizes that do not divide, fewer features than ranks, rows that not every coordinate has: run_layer's own check.
TEST(Ledger, PartsThatDoNotDivide) {
  for (const Product& p : {Product{13, 7, 5}, Product{3, 11, 2}, Product{1, 1, 1}}) {
    for (const DenseShape& g : grids()) {
      for (const bool swapped : {false, true}) {
        SCOPED_TRACE(name(g) + (swapped ? " swapped" : "") + " m " + std::to_string(p.m));
        run_layer(p, g, swapped, Summation::fast);
        run_layer(p, g, swapped, Summation::deterministic);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

// A whole step of a net of three matrices, two micro-batches: the sums over its layers. The first layer has no input
// gradient, and gathers its weight once.
TEST(Ledger, StepOfThreeMatrices) {
  const Communicator& world = test::launch().world();
  const std::int64_t widths[] = {32, 64, 16, 8}, global = 32, micro_batches = 2;
  const std::string yaml = R"(
run: {name: ledger, steps: 4, seed: 3}
model: {kind: mlp, widths: [32, 64, 16, 8], activation: relu, loss: squared_error, init: {std: 0.1}}
data: {kind: synthetic, synthetic: dyadic, samples: 64}
batch: {global: 32, micro_batches: 2}
optimizer: {kind: momentum, lr: 0.1}
precision: {compute: fp64}
)";
  for (const DenseShape& g : grids()) {
    for (const char* overlap : {"true", "false"}) {
      SCOPED_TRACE(name(g) + " overlap " + overlap);
      const Deck deck = test::deck_of(
          yaml,
          {"parallel.dense.data=" + std::to_string(g.data), "parallel.dense.depth=" + std::to_string(g.depth),
           "parallel.dense.row=" + std::to_string(g.row), "parallel.dense.col=" + std::to_string(g.col),
           std::string("parallel.overlap=") + overlap},
          world.size());
      test::Training<> run(deck, world);
      CommLedger& ledger = world.ledger();
      ledger.clear();
      test::clear_mpi_traffic();
      run.trainer.step();
      expect_as_mpi_saw_it(ledger);

      std::int64_t gather_forward = 0, gather_backward = 0, scatter = 0, data = 0;
      std::map<std::string, std::int64_t> forward, backward;
      for (int layer = 0; layer < 3; ++layer) {
        const bool swapped = layer % 2 == 1;
        const Product p{global / micro_batches, widths[layer], widths[layer + 1]};
        const Volume v = closed_form(p, g, swapped ? g.row : g.col, swapped ? g.col : g.row);
        gather_forward += micro_batches * v.all_gather_depth;
        scatter += micro_batches * v.reduce_scatter_depth;
        forward[swapped ? "row" : "col"] += micro_batches * v.all_reduce_in;
        data += v.all_reduce_data;
        // The loss of a row sums over the axis that cuts the last layer's outputs: one number a row.
        if (layer == 2) forward["row"] += micro_batches * exactly(2 * (g.row - 1) * p.m, g.row * g.data * g.depth);
        if (layer == 0) continue;
        gather_backward += micro_batches * v.all_gather_depth;
        backward[swapped ? "col" : "row"] += micro_batches * v.all_reduce_out;
      }
      EXPECT_EQ(moved(ledger, Operation::all_gather, "depth", Phase::forward), gather_forward);
      EXPECT_EQ(moved(ledger, Operation::all_gather, "depth", Phase::backward), gather_backward);
      EXPECT_EQ(moved(ledger, Operation::reduce_scatter, "depth", Phase::backward), scatter);
      for (const char* axis : {"row", "col"}) {
        EXPECT_EQ(moved(ledger, Operation::all_reduce, axis, Phase::forward), forward[axis]) << axis;
        EXPECT_EQ(moved(ledger, Operation::all_reduce, axis, Phase::backward), backward[axis]) << axis;
      }
      EXPECT_EQ(moved(ledger, Operation::all_reduce, "data", Phase::gradient), data);
      if (testing::Test::HasFailure()) return;
    }
  }
}

// With a watchdog beside: all communicators are there before the first step ends (P44), one thread calls MPI (P45), and
// the rings of calls hold what the step did.
TEST(KnownFaults, P44CommunicatorsBeforeTheFirstStepP45OneThreadCallsMpi) {
  const Communicator& world = test::launch().world();
  const std::string folder = testing::TempDir() + "/fourfold_rings";
  ASSERT_EQ(test::launch().watch({folder, [](std::string_view) { return 3600.0; }}), "");
  test::Training<> run(
      test::deck_of(test::small_transformer(), {"parallel.dense.row=2", "parallel.dense.depth=2"}, world.size()),
      world);
  run.trainer.step();
  const std::int64_t made = test::mpi_traffic().communicators;
  for (int step = 0; step < 3; ++step) run.trainer.step();
  EXPECT_EQ(test::mpi_traffic().communicators, made);
  EXPECT_EQ(test::mpi_traffic().foreign, 0);

  const auto ring = read_ring(Watchdog::ring_path(folder, world.rank()));
  ASSERT_TRUE(ring);
  EXPECT_EQ(ring->step, 4);
  EXPECT_EQ(ring->phase, "update");
  EXPECT_EQ(ring->waiting, -1);
  const auto at = [&](const std::string& place) {
    return std::any_of(ring->calls.begin(), ring->calls.end(),
                       [&](const RingCall& call) { return call.ended && call.where.starts_with(place); });
  };
  EXPECT_TRUE(at("layers/linear.cpp:")) << "a movement names the layer's line, not its own";
  EXPECT_TRUE(at("optim/"));
}

}  // namespace
}  // namespace fourfold
