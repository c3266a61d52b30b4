// A step of three matrices on the virtual clock: the makespan is the one worked out by hand, with overlap and without;
// what overlap hides is what it should; no number of the run changes by a bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "comm/collectives.hpp"
#include "comm/launch.hpp"
#include "comm/ledger.hpp"
#include "comm/virtual_clock.hpp"
#include "mpi_test.hpp"
#include "runs.hpp"
#include "test_support.hpp"
#include "train/traffic.hpp"

namespace fourfold {
namespace {

// 12 samples through 16 -> 24 -> 32 -> 8, no biases, so that the gradients' sums and the update are of 1408 elements.
constexpr const char* kThreeMatrices = R"(
run: {name: three, steps: 4, seed: 3}
model: {kind: mlp, widths: [16, 24, 32, 8], activation: relu, loss: squared_error, bias_terms: false}
data: {kind: synthetic, synthetic: teacher, samples: 96}
batch: {global: 12, micro_batches: 1}
optimizer: {kind: sgd, lr: 0.01}
precision: {compute: fp64}
numerics: {deterministic: true}
)";

// Two ranks a node. A FLOP takes 1 ps, a byte of memory too. Inside a node a byte takes 2 ps and a message flies for
// 100 ps; between nodes 5 and 700.
Machine machine() {
  Machine m;
  m.nodes = 2;
  m.ranks_per_node = 2;
  m.inside = {100, 500'000'000'000};
  m.between = {700, 200'000'000'000};
  m.fp64 = m.memory_bandwidth = 1'000'000'000'000;
  return m;
}

// One product of m x k by k x n.
Picoseconds product(Picoseconds m, Picoseconds n, Picoseconds k) {
  return std::max(2 * m * n * k, 8 * (m * k + n * k + m * n));
}
struct Wire {
  Picoseconds byte, flight;
};
constexpr Wire kInside{2, 100}, kBetween{5, 700};
// Doubles; `part`: of the largest rank.
Picoseconds all_reduce(Wire wire, Picoseconds ranks, Picoseconds part) {
  return 2 * (ranks - 1) * (8 * part * wire.byte + wire.flight);
}
Picoseconds gather_or_scatter(Wire wire, Picoseconds ranks, Picoseconds part) {
  return (ranks - 1) * (8 * part * wire.byte + wire.flight);
}
// After backward and the gradients' sums: the loss (2 doubles), the norm (one double a tensor, then the root's), the
// update, which reads gradients and weights and writes weights.
Picoseconds tail(Wire world, Picoseconds ranks, Picoseconds parameters) {
  return all_reduce(world, ranks, (2 + ranks - 1) / ranks) + all_reduce(world, ranks, (3 + ranks - 1) / ranks) +
         8 * world.byte + (ranks - 1) * world.flight + 3 * 8 * parameters;
}

struct Outcome {
  Picoseconds makespan = 0;
  std::vector<double> losses;
  test::Tensors weights;
};

Outcome run(const Communicator& group, const std::string& yaml, std::vector<std::string> overrides, int steps) {
  const auto records = test::run_steps(test::deck_of(yaml, overrides, group.size()), group, steps);
  Outcome outcome;
  outcome.makespan = group.clock().now();
  all_reduce_max<std::int64_t>(group, {&outcome.makespan, 1}, Phase::control);
  for (const test::StepRecord& record : records) outcome.losses.push_back(record.loss);
  outcome.weights = records.back().weights;
  return outcome;
}

// Without emulation first, then on the machine, twice each: the same bits, and a step takes `with` or `without`
// overlap.
void expect_makespans(int ranks, const std::vector<std::string>& grid, Picoseconds with, Picoseconds without) {
  test::on_ranks(ranks, [&](const Communicator& group) {
    for (const bool overlap : {true, false}) {
      SCOPED_TRACE(overlap ? "overlap" : "no overlap");
      std::vector<std::string> overrides = grid;
      overrides.push_back(std::string("parallel.overlap=") + (overlap ? "true" : "false"));
      Outcome plain;
      {
        const VirtualClock::Pause pause(group.clock());
        plain = run(group, kThreeMatrices, overrides, 3);
      }
      for (int repeat = 0; repeat < 2; ++repeat) {
        test::launch().emulate(machine());
        const Outcome outcome = run(group, kThreeMatrices, overrides, 3);
        EXPECT_EQ(outcome.makespan, 3 * (overlap ? with : without));
        EXPECT_EQ(outcome.losses, plain.losses);
        EXPECT_EQ(outcome.weights, plain.weights);
      }
    }
  });
}

// On four ranks, one way to update after the other: three steps each take their makespan and give the same bits.
using Ways = std::vector<std::pair<std::vector<std::string>, Picoseconds>>;
void expect_makespans_of_three(const std::vector<std::string>& common, const Ways& ways) {
  test::on_ranks(4, [&](const Communicator& group) {
    std::optional<Outcome> first;
    for (const auto& [way, makespan] : ways) {
      std::vector<std::string> overrides = common;
      overrides.insert(overrides.end(), way.begin(), way.end());
      test::launch().emulate(machine());
      const Outcome outcome = run(group, kThreeMatrices, overrides, 3);
      EXPECT_EQ(outcome.makespan, makespan) << (way.empty() ? "" : way.back());
      if (!first) first = outcome;
      EXPECT_EQ(outcome.losses, first->losses);
      EXPECT_EQ(outcome.weights, first->weights);
    }
  });
}

class ThreeMatrices : public testing::Test {
 protected:
  void SetUp() override { test::launch().emulate(machine()); }
};

TEST_F(ThreeMatrices, OneRankComputes) {
  const std::array<Picoseconds, 3> p{product(12, 24, 16), product(12, 32, 24), product(12, 8, 32)};
  const Picoseconds all = 2 * p[0] + 3 * p[1] + 3 * p[2] + 3 * 8 * 1408;
  test::on_ranks(1, [&](const Communicator& group) { EXPECT_EQ(run(group, kThreeMatrices, {}, 3).makespan, 3 * all); });
}

// Two rows of one node: the second matrix' output is summed over them, the third's input gradient too, behind its
// weight product; the loss of 12 samples is summed.
TEST_F(ThreeMatrices, RowHidesTheSumOfTheInputGradient) {
  const std::array<Picoseconds, 3> p{product(12, 12, 16), product(12, 32, 12), product(12, 4, 32)};
  const Picoseconds sum = all_reduce(kInside, 2, 12 * 32 / 2);
  const Picoseconds without =
      2 * p[0] + 3 * p[1] + 3 * p[2] + 2 * sum + all_reduce(kInside, 2, 12 / 2) + tail(kInside, 2, 704);
  EXPECT_EQ(p[2], 4480);  // memory: 8 (384 + 128 + 48)
  EXPECT_EQ(sum, 6344);
  expect_makespans(2, {"parallel.dense.row=2"}, without - 4480, without);  // the whole weight product is hidden

  // The report at a run's end says so too: two sums of rows and one of losses, of which one hides the product.
  test::on_ranks(2, [&](const Communicator& group) {
    test::launch().emulate(machine());
    group.ledger().clear();
    run(group, kThreeMatrices, {"parallel.dense.row=2"}, 3);
    const TrafficReport report = traffic_report(group);
    if (group.rank() != 0) return;
    EXPECT_EQ(report.makespan, 3 * (without - 4480));
    const auto row =
        std::find_if(report.axes.begin(), report.axes.end(), [](const AxisTraffic& t) { return t.axis == "row"; });
    ASSERT_NE(row, report.axes.end());
    EXPECT_EQ(row->operations, 2 * 3 * 3);
    EXPECT_EQ(row->messages, 2 * 2 * 3 * 3);
    EXPECT_EQ(row->bytes_inside, 2 * 3 * 8 * (384 + 384 + 12));
    EXPECT_EQ(row->bytes_between, 0);
    const double exposed = 3e-12 * static_cast<double>(2 * sum + all_reduce(kInside, 2, 6) - 4480);
    EXPECT_DOUBLE_EQ(row->virtual_mean, exposed);
    EXPECT_DOUBLE_EQ(row->virtual_largest, exposed);
    EXPECT_NE(traffic_table(report).find("virtual"), std::string::npos);
  });
}

// Two columns: the first and third matrices' outputs are summed, and the second's input gradient.
TEST_F(ThreeMatrices, ColHidesTheSumOfTheInputGradient) {
  const std::array<Picoseconds, 3> p{product(12, 24, 8), product(12, 16, 24), product(12, 8, 16)};
  const Picoseconds first = all_reduce(kInside, 2, 12 * 24 / 2), third = all_reduce(kInside, 2, 12 * 8 / 2);
  const Picoseconds gradient = all_reduce(kInside, 2, 12 * 24 / 2);
  const Picoseconds without = 2 * p[0] + 3 * p[1] + 3 * p[2] + first + third + gradient + tail(kInside, 2, 704);
  EXPECT_EQ(p[1], 9216);
  EXPECT_EQ(gradient, 4808);
  expect_makespans(2, {"parallel.dense.col=2"}, without - 4808, without);  // the whole sum is hidden
}

// Two depths, six samples each: weights are gathered ahead of their use, gradients scattered behind what follows.
TEST_F(ThreeMatrices, DepthHidesGathersAndScatters) {
  const std::array<Picoseconds, 3> p{product(6, 24, 16), product(6, 32, 24), product(6, 8, 32)};
  const std::array<Picoseconds, 3> move{gather_or_scatter(kInside, 2, 24 * 16 / 2),
                                        gather_or_scatter(kInside, 2, 32 * 24 / 2),
                                        gather_or_scatter(kInside, 2, 8 * 32 / 2)};
  // Forward gathers three, backward two (the first matrix has no input gradient) and scatters three.
  const Picoseconds without =
      2 * p[0] + 3 * p[1] + 3 * p[2] + 2 * move[0] + 3 * move[1] + 3 * move[2] + tail(kInside, 2, 704);
  EXPECT_EQ(p, (std::array<Picoseconds, 3>{4992, 9216, 3968}));
  EXPECT_EQ(move, (std::array<Picoseconds, 3>{3172, 6244, 2148}));
  // Forward: of the second's gather 4992 behind the first product, the third's behind the second product.
  const Picoseconds forward = 4992 + 2148;
  // Backward: the second's gather (6244) behind the third's two products (7936); the third's scatter behind the
  // second's products (18432), the second's (6244) behind the first product as far as that goes (4992).
  const Picoseconds backward = 6244 + 2148 + 4992;
  expect_makespans(2, {"parallel.dense.depth=2"}, without - forward - backward, without);
}

// Four ranks on two nodes: rows inside them, data between. The gradients' sum crosses the nodes.
TEST_F(ThreeMatrices, DataBetweenNodes) {
  const std::array<Picoseconds, 3> p{product(6, 12, 16), product(6, 32, 12), product(6, 4, 32)};
  const Picoseconds sum = all_reduce(kInside, 2, 6 * 32 / 2);
  const Picoseconds without = 2 * p[0] + 3 * p[1] + 3 * p[2] + 2 * sum + all_reduce(kInside, 2, 6 / 2) +
                              all_reduce(kBetween, 2, 704 / 2) + tail(kBetween, 4, 704);
  EXPECT_EQ(p[2], 2752);
  EXPECT_EQ(sum, 3272);
  expect_makespans(4, {"parallel.dense.row=2", "parallel.dense.data=2"}, without - 2752, without);
}

// Four ranks of data, two a node, three samples each: what a step takes beside the gradients' sum and the way back of
// gradients or values. `part`: the elements that a rank updates.
Picoseconds four_of_data(Picoseconds part) {
  const std::array<Picoseconds, 3> p{product(3, 24, 16), product(3, 32, 24), product(3, 8, 32)};
  EXPECT_EQ(p, (std::array<Picoseconds, 3>{4032, 7488, 3008}));  // memory
  return 2 * p[0] + 3 * p[1] + 3 * p[2] + tail(kBetween, 4, part);
}

// Sharded over all four, 1408 elements in parts of 352. One group holds all three matrices, so that a lazy gather is
// waited for by the first product: nothing of the virtual machine's is in between. Nothing overlaps but buckets, which
// share one channel.
TEST_F(ThreeMatrices, ShardedUpdate) {
  const Picoseconds move = gather_or_scatter(kBetween, 4, 352);
  EXPECT_EQ(move, 3 * (352 * 8 * 5 + 700));
  const Picoseconds step = four_of_data(352) + 2 * move;
  const Picoseconds bucketed = step + 10 * 3 * 700;  // of 128 doubles, 32 of every part: eleven times the flight
  expect_makespans_of_three({"optimizer.shard=data"},
                            {{{}, 3 * step},
                             {{"parallel.overlap=false"}, 3 * step},
                             {{"optimizer.gather=lazy"}, 3 * step},
                             {{"comm.bucket_bytes=1024"}, 3 * bucketed},
                             {{"comm.bucket_bytes=1024", "parallel.overlap=false"}, 3 * bucketed}});
}

// Parts over two neighbours of a node; their sums cross the nodes.
TEST_F(ThreeMatrices, PartlyShardedUpdate) {
  const Picoseconds step =
      four_of_data(704) + 2 * gather_or_scatter(kInside, 2, 704) + all_reduce(kBetween, 2, 704 / 2);
  expect_makespans_of_three({"optimizer.shard={data_partial: 2}"},
                            {{{}, 3 * step}, {{"optimizer.gather=lazy", "parallel.overlap=false"}, 3 * step}});
}

// A mesh of two by two: along y (between nodes) whole buffers in halves, along x (inside them) halves in quarters; back
// along x, then y.
TEST_F(ThreeMatrices, TorusSum) {
  const Picoseconds moves = 2 * gather_or_scatter(kBetween, 2, 704) + 2 * gather_or_scatter(kInside, 2, 352);
  const Picoseconds whole = four_of_data(1408) + moves, sharded = four_of_data(352) + moves;
  expect_makespans_of_three({"comm.gradient.algorithm=torus2d", "comm.gradient.dims=[2,2]"},
                            {{{}, 3 * whole},
                             {{"parallel.overlap=false"}, 3 * whole},
                             {{"optimizer.shard=data"}, 3 * sharded},
                             {{"optimizer.shard=data", "optimizer.gather=lazy"}, 3 * sharded}});
}

// Halves inside each node, then their sum between nodes; sharded, quarters between nodes.
TEST_F(ThreeMatrices, TwoLevelSum) {
  const Picoseconds inside = 2 * gather_or_scatter(kInside, 2, 704);
  const Picoseconds step = four_of_data(1408) + inside + all_reduce(kBetween, 2, 704 / 2);
  // Buckets of 512 doubles: 256, 256 and 192 of both halves, then 512 and 192 between nodes; one gather.
  const Picoseconds bucketed = step + 2 * 100 + 2 * 700;
  const Picoseconds sharded = four_of_data(352) + inside + 2 * gather_or_scatter(kBetween, 2, 352);
  expect_makespans_of_three({"comm.gradient.algorithm=two_level"},
                            {{{}, 3 * step},
                             {{"parallel.overlap=false"}, 3 * step},
                             {{"comm.bucket_bytes=4096"}, 3 * bucketed},
                             {{"optimizer.shard=data"}, 3 * sharded},
                             {{"optimizer.shard=data", "optimizer.gather=lazy"}, 3 * sharded}});
}

// With biases there are two groups: weights (704 elements on each depth, summed over data), biases (64, over both).
// Lazy: the first product waits for the weights; the biases' gather runs behind it and the weight's gather over depth.
TEST_F(ThreeMatrices, LazyGatherOfASecondGroupIsHidden) {
  const std::array<Picoseconds, 3> p{product(3, 24, 16), product(3, 32, 24), product(3, 8, 32)};
  const std::array<Picoseconds, 3> move{gather_or_scatter(kInside, 2, 24 * 16 / 2),
                                        gather_or_scatter(kInside, 2, 32 * 24 / 2),
                                        gather_or_scatter(kInside, 2, 8 * 32 / 2)};
  const Picoseconds weights = gather_or_scatter(kBetween, 2, 352), biases = gather_or_scatter(kBetween, 4, 16);
  const Picoseconds loss = all_reduce(kBetween, 4, 1);
  const Picoseconds norm = all_reduce(kBetween, 4, 2) + 8 * 5 + 3 * 700;  // six tensors
  const Picoseconds eager = 2 * p[0] + 3 * p[1] + 3 * p[2] + 2 * move[0] + 3 * move[1] + 3 * move[2] + 2 * weights +
                            2 * biases + loss + norm + 3 * 8 * (352 + 16);
  EXPECT_EQ(biases, 4020);
  EXPECT_LT(biases, move[0] + p[0]);
  // Nothing follows the last step that could hide its gather.
  expect_makespans_of_three({"model.bias_terms=true", "parallel.dense.data=2", "parallel.dense.depth=2",
                             "optimizer.shard=data", "parallel.overlap=false"},
                            {{{}, 3 * eager}, {{"optimizer.gather=lazy"}, 3 * eager - 2 * biases}});
}

// The update's time alone: products are bound by their FLOPs here, so that only the update feels a memory half as fast.
Picoseconds update_time(const Communicator& group, const std::vector<std::string>& overrides) {
  std::array<Picoseconds, 2> makespans{};
  for (const int factor : {1, 2}) {
    Machine m = machine();
    m.fp64 = 10'000'000'000;
    m.memory_bandwidth /= factor;
    test::launch().emulate(m);
    makespans[static_cast<std::size_t>(factor - 1)] = run(group, kThreeMatrices, overrides, 1).makespan;
  }
  return makespans[1] - makespans[0];
}

// AdamW moves seven doubles an element. A part of the update takes exactly 1/R of the whole where R divides the
// group's P elements, else the time of the largest part, ceil(P/R) elements: padding is not updated, but the step is
// that of the slowest rank.
TEST_F(ThreeMatrices, UpdateTimeFallsByTheRanksOfItsShards) {
  struct Case {
    int ranks;
    std::vector<std::string> overrides;
    Picoseconds elements, parts;  // of a rank's group; R
  };
  for (const Case& c : std::vector<Case>{
           {2, {"optimizer.shard=data"}, 1408, 2},
           {4, {"optimizer.shard=data"}, 1408, 4},
           {4, {"optimizer.shard={data_partial: 2}"}, 1408, 2},
           {4, {"optimizer.shard=data", "comm.gradient.algorithm=two_level"}, 1408, 4},
           {4, {"optimizer.shard=data", "parallel.dense.row=2"}, 704, 2},
           {3, {"optimizer.shard=data"}, 1408, 3},
           {3, {"optimizer.shard=data", "optimizer.gather=lazy"}, 1408, 3},
       }) {
    SCOPED_TRACE(std::to_string(c.ranks) + " ranks " + c.overrides.back());
    test::on_ranks(c.ranks, [&](const Communicator& group) {
      std::vector<std::string> overrides = c.overrides;
      overrides.emplace_back("optimizer.kind=adamw");
      const Picoseconds sharded = update_time(group, overrides);
      overrides.front() = "optimizer.shard=none";
      const Picoseconds whole = update_time(group, overrides);
      EXPECT_EQ(whole, 56 * c.elements);
      EXPECT_EQ(sharded, 56 * ((c.elements + c.parts - 1) / c.parts));
      if (c.elements % c.parts == 0) {
        EXPECT_EQ(whole, c.parts * sharded);
      }
    });
  }
}

// A transformer with every movement there is: the makespan is the same in every run, and overlap never costs.
TEST_F(ThreeMatrices, TransformersTakeTheSameTimeInEveryRun) {
  const std::vector<std::vector<std::string>> grids = {
      {"parallel.dense.row=2", "parallel.dense.col=2", "parallel.sequence_shard=true"},
      {"parallel.dense.depth=2", "parallel.dense.row=2"},
      {"parallel.dense.data=2", "parallel.dense.col=2", "attention.split=col", "optimizer.kind=momentum"},
      {"parallel.dense.depth=4", "parallel.depth_splits=sequence"}};
  test::on_ranks(4, [&](const Communicator& group) {
    for (const std::vector<std::string>& grid : test::sample(grids, 2)) {
      SCOPED_TRACE(grid.front() + " " + grid.back());
      std::array<Picoseconds, 2> makespans{};
      std::vector<double> losses;
      for (const bool overlap : {false, true}) {
        std::vector<std::string> overrides = grid;
        overrides.push_back(std::string("parallel.overlap=") + (overlap ? "true" : "false"));
        for (int repeat = 0; repeat < 2; ++repeat) {
          test::launch().emulate(machine());
          const Outcome outcome = run(group, test::small_transformer(), overrides, 2);
          if (repeat == 1) {
            EXPECT_EQ(outcome.makespan, makespans[overlap ? 1 : 0]);
          }
          makespans[overlap ? 1 : 0] = outcome.makespan;
          if (losses.empty()) losses = outcome.losses;
          EXPECT_EQ(outcome.losses, losses);
        }
      }
      EXPECT_LT(makespans[1], makespans[0]);
    }
  });
}

}  // namespace
}  // namespace fourfold
