#include "optim/norm.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "small_store.hpp"

namespace fourfold {
namespace {

// P24: two stages of two ranks, tensor parallel (row) 2 and expert parallel 2 on the first.
//   replicated (3, 4); split over row (1, 2) and (2, 4); experts 6 and 8; second stage 5, 5.
struct P24 {
  MemoryLedger ledger;
  Pool pool{ledger};
  ParamStore<double> store;
  GridComms comms;
  std::vector<Param<double>*> mine;

  P24(const Communicator& world, bool replicated_counted_twice, double second_expert)
      : comms(world, ProcessGrid(std::vector<StageShape>(2, StageShape{DenseShape{.row = 2}, MoeShape{.expert = 2}})),
              {{Axis::data, Axis::depth}, {Axis::replica}}) {
    const Coordinates& here = comms.here();
    const AxisSet dense{Axis::data, Axis::depth};
    if (here.stage == 0) {
      declare(test::whole_spec("norm", {2}, dense, here.row == 0 || replicated_counted_twice), {3, 4});
      Shard half{{4}, {Range{2 * here.row, 2 * here.row + 2}}, Range{0, 2}};
      declare({"split", half, dense, true, constant_initializer(0)},
              here.row == 0 ? std::vector<double>{1, 2} : std::vector<double>{2, 4});
      declare(test::whole_spec("experts." + std::to_string(here.expert), {1}, {Axis::replica}),
              {here.expert == 0 ? 6 : second_expert});
    } else {
      declare(test::whole_spec("head", {2}, dense, here.row == 0), {5, 5});
    }
    store.allocate(pool);
    for (std::size_t i = 0; i < mine.size(); ++i) test::set_values(mine[i]->grad, grads_[i]);
  }

  double norm() {
    test::Updating<double> updating({}, comms, store, pool);
    updating.reducer.reduce();
    return updating.norm.compute().norm;
  }

 private:
  void declare(ParamSpec spec, std::vector<double> grad) {
    mine.push_back(store.declare(std::move(spec)));
    grads_.push_back(std::move(grad));
  }
  std::vector<std::vector<double>> grads_;
};

TEST(GradientNorm, P24) {
  const Communicator& world = test::launch().world();
  if (world.size() != 4) GTEST_SKIP() << "NOT TESTED in this launch: that of 4 ranks runs it";
  const double norm = P24(world, false, 8).norm();
  EXPECT_NEAR(norm, std::sqrt(200.0), 1e-14);
  // Wrong answers that other programs gave.
  for (const double wrong : {15.0, 12.247448714, 11.661903790, 12.806248475}) EXPECT_GT(std::abs(norm - wrong), 0.5);
  // What the ownership is for: counted on both row ranks, the replicated tensor would give 15.
  EXPECT_NEAR(P24(world, true, 8).norm(), 15.0, 1e-14);
  // An expert without tokens: the same on all ranks, no hang.
  EXPECT_NEAR(P24(world, false, 0).norm(), 11.661903790, 1e-9);
}

TEST(GradientNorm, P24OrderOfTensors) {
  const Communicator& world = test::launch().world();
  if (world.size() != 4) GTEST_SKIP() << "NOT TESTED in this launch: that of 4 ranks runs it";
  P24 p24(world, false, 8);
  const test::Updating<double> updating({}, p24.comms, p24.store, p24.pool);
  EXPECT_EQ(updating.sums.tensors(), (std::vector<std::string>{"norm", "split", "experts.0", "experts.1", "head"}));
}

// Ranks that hold the same summed gradient: one of them counts it.
TEST(GradientNorm, SummedCopiesCountOnce) {
  const Communicator& world = test::launch().world();
  const GridComms comms = test::data_comms();
  MemoryLedger ledger;
  Pool pool(ledger);
  ParamStore<double> store;
  Param<double>* param = store.declare(test::whole_spec("a", {2}, {Axis::data}));
  store.allocate(pool);
  test::set_values(param->grad, {3.0, -4.0});
  test::Updating<double> updating({}, comms, store, pool);
  updating.reducer.reduce();
  EXPECT_EQ(updating.norm.compute().norm, 5.0 * world.size());
}

// P62: the first tensor in global order whose gradient is not finite, on every rank, whichever rank made it.
TEST(GradientNorm, P62NamesTheTensor) {
  const Communicator& world = test::launch().world();
  const GridComms comms = test::data_comms();
  MemoryLedger ledger;
  Pool pool(ledger);
  ParamStore<float> store;
  std::vector<Param<float>*> params;
  for (const char* name : {"a", "b", "c"}) params.push_back(store.declare(test::whole_spec(name, {4}, {Axis::data})));
  store.allocate(pool);
  test::Updating<float> updating({}, comms, store, pool);
  EXPECT_EQ(updating.norm.compute().norm, 0.0);
  if (world.rank() == world.size() - 1) {
    test::set_values(params[2]->grad, {1, std::numeric_limits<double>::infinity(), 0, 0});
    test::set_values(params[1]->grad, {0, 0, 0, std::numeric_limits<double>::quiet_NaN()});
  }
  updating.reducer.reduce();
  const NormReport report = updating.norm.compute();
  EXPECT_FALSE(std::isfinite(report.norm));
  EXPECT_EQ(report.first_non_finite, "b");
}

TEST(GradientNorm, ClipAddsNothingToTheNorm) {
  EXPECT_EQ(clip_factor(1.0, 4.0), 0.25);
  EXPECT_EQ(clip_factor(1.0, 1.0), 1.0);
  EXPECT_EQ(clip_factor(1.0, 0.5), 1.0);
  EXPECT_EQ(clip_factor(0.0, 4.0), 1.0);
  EXPECT_EQ(clip_factor(1.0, 0.0), 1.0);
}

}  // namespace
}  // namespace fourfold
