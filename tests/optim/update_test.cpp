// The optimizers against plain loops written from the formulas.
#include <gtest/gtest.h>

#include <cmath>

#include "base/random.hpp"
#include "optim/optimizer.hpp"
#include "small_store.hpp"

namespace fourfold {
namespace {

struct Fixture {
  MemoryLedger ledger;
  Pool pool{ledger};
  ParamStore<double> store;
  Fixture() {
    // Decay differs between neighbours, and the second group has one more matrix.
    store.declare(test::whole_spec("a.weight", {3, 5}, {Axis::data}));
    store.declare(test::whole_spec("a.bias", {5}, {Axis::data}));
    store.declare(test::whole_spec("gate.weight", {2, 2}, {Axis::data, Axis::row}));
    store.declare(test::whole_spec("b.weight", {4, 3}, {Axis::data}));
    store.declare(test::whole_spec("c.weight", {1, 7}, {Axis::data}));
    store.allocate(pool);
  }
  void make_gradients(std::uint64_t step) {
    for (Param<double>& param : store.params()) {
      std::vector<double> g(param.grad.extent(0));
      const RandomStream stream = random_stream(7, param.spec.name, step);
      for (std::size_t i = 0; i < g.size(); ++i) g[i] = normal(stream, i);
      test::set_values(param.grad, g);
    }
  }
};

OptimizerDeck deck_of(OptimizerKind kind, double weight_decay) {
  OptimizerDeck deck;
  deck.kind = kind;
  deck.momentum = 0.8;
  deck.weight_decay = weight_decay;
  return deck;
}

void expect_formula(const OptimizerDeck& deck) {
  Fixture fixture;
  const std::int64_t before = fixture.ledger.live(MemoryTag::optimizer);
  Optimizer<double> optimizer(deck, {}, fixture.store, fixture.pool);
  const std::int64_t kinds = deck.kind == OptimizerKind::adamw ? 2 : deck.kind == OptimizerKind::momentum ? 1 : 0;
  EXPECT_EQ(fixture.ledger.live(MemoryTag::optimizer) - before, kinds * (15 + 5 + 4 + 12 + 7) * 8);
  ASSERT_EQ(optimizer.states().size(), static_cast<std::size_t>(kinds) * 5);

  std::vector<std::vector<double>> w, m, v;
  for (const Param<double>& param : fixture.store.params()) {
    w.push_back(test::get_values(param.value));
    m.emplace_back(w.back().size(), 0.0);
    v.emplace_back(w.back().size(), 0.0);
  }
  for (std::int64_t step = 1; step <= 3; ++step) {
    fixture.make_gradients(static_cast<std::uint64_t>(step));
    const double rate = 0.01 * static_cast<double>(step), scale = 0.75;
    std::size_t p = 0;
    for (const Param<double>& param : fixture.store.params()) {
      const std::vector<double> grads = test::get_values(param.grad);
      const double decay = param.spec.shard.shape.size() >= 2 ? deck.weight_decay : 0.0;
      for (std::size_t i = 0; i < grads.size(); ++i) {
        const double g = scale * grads[i];
        double direction = g;
        if (deck.kind == OptimizerKind::momentum) direction = m[p][i] = deck.momentum * m[p][i] + g;
        if (deck.kind == OptimizerKind::adamw) {
          m[p][i] = deck.beta1 * m[p][i] + (1 - deck.beta1) * g;
          v[p][i] = deck.beta2 * v[p][i] + (1 - deck.beta2) * g * g;
          const auto n = static_cast<double>(step);
          direction =
              m[p][i] / (1 - std::pow(deck.beta1, n)) / (std::sqrt(v[p][i] / (1 - std::pow(deck.beta2, n))) + deck.eps);
        }
        w[p][i] -= rate * (direction + decay * w[p][i]);
      }
      ++p;
    }
    optimizer.update(step, rate, scale);
  }
  std::size_t p = 0;
  for (const Param<double>& param : fixture.store.params()) {
    const std::vector<double> got = test::get_values(param.value);
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], w[p][i], 1e-14) << param.spec.name << " " << i;
    ++p;
  }
  std::size_t s = 0;
  for (const auto& state : optimizer.states()) {
    const std::vector<double> got = test::get_values(state.values);
    const auto& expected = s < 5 ? m[s] : v[s - 5];
    EXPECT_EQ(state.kind, s < 5 ? "m" : "v");
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-14) << state.param->spec.name;
    ++s;
  }
}

TEST(Optimizer, Sgd) {
  expect_formula(deck_of(OptimizerKind::sgd, 0.3));
}
TEST(Optimizer, Momentum) {
  expect_formula(deck_of(OptimizerKind::momentum, 0.3));
}
TEST(Optimizer, AdamW) {
  expect_formula(deck_of(OptimizerKind::adamw, 0.3));
}

// P09: a lost step counter multiplies the next update by about 2.24 (betas 0.9, 0.95).
TEST(Optimizer, P09StepCounter) {
  const auto last_update = [](std::int64_t last_step) {
    Fixture fixture;
    Optimizer<double> optimizer(deck_of(OptimizerKind::adamw, 0.0), {}, fixture.store, fixture.pool);
    const Param<double>& param = fixture.store.params().front();
    const auto one_step = [&](std::int64_t step) {
      test::set_values(param.grad, std::vector<double>(15, 0.25));
      optimizer.update(step, 1e-3, 1.0);
    };
    for (std::int64_t step = 1; step <= 400; ++step) one_step(step);
    const double before = test::get_values(param.value)[0];
    one_step(last_step);
    return before - test::get_values(param.value)[0];
  };
  EXPECT_NEAR(last_update(1) / last_update(401), 2.236, 0.01);
}

TEST(Optimizer, SnapRoundsWeightsTiesToEven) {
  Fixture fixture;
  NumericsDeck numerics;
  numerics.snap = 8;
  Optimizer<double> optimizer(deck_of(OptimizerKind::sgd, 0.0), numerics, fixture.store, fixture.pool);
  const Param<double>& param = fixture.store.params().front();
  std::vector<double> w(15, 1.0), g(15, 0.0);
  g[0] = 0x1p-9;         // 1 - 2^-9: a tie between 255 and 256, goes to 256 / 256
  g[1] = 0x3p-9;         // a tie between 254 and 255, goes to 254 / 256
  g[2] = 1.0 + 0x1p-10;  // -2^-10 rounds to zero, never to -0
  test::set_values(param.value, w);
  test::set_values(param.grad, g);
  optimizer.update(1, 1.0, 1.0);
  const std::vector<double> got = test::get_values(param.value);
  EXPECT_EQ(got[0], 1.0);
  EXPECT_EQ(got[1], 254.0 / 256);
  EXPECT_EQ(got[2], 0.0);
  EXPECT_FALSE(std::signbit(got[2]));
  EXPECT_EQ(got[3], 1.0);
}

}  // namespace
}  // namespace fourfold
