// The optimizers against plain loops written from the formulas.
#include <gtest/gtest.h>

#include <cmath>

#include "base/random.hpp"
#include "optim/optimizer.hpp"
#include "small_store.hpp"

namespace fourfold {
namespace {

struct Fixture {
  Deck deck;
  GridComms comms = test::data_comms();
  MemoryLedger ledger;
  Pool pool{ledger};
  ParamStore<double> store;
  explicit Fixture(const OptimizerDeck& optimizer) {
    deck.optimizer = optimizer;
    // Decay differs between neighbours, and the second group has one more matrix.
    store.declare(test::whole_spec("a.weight", {3, 5}, {Axis::data}));
    store.declare(test::whole_spec("a.bias", {5}, {Axis::data}));
    store.declare(test::whole_spec("gate.weight", {2, 2}, {Axis::data, Axis::row}));
    store.declare(test::whole_spec("b.weight", {4, 3}, {Axis::data}));
    store.declare(test::whole_spec("c.weight", {1, 7}, {Axis::data}));
    store.allocate(pool, test::padding(deck, comms));
  }
  // Summed already: the same on every rank.
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
  deck.trust = 0.02;
  return deck;
}

double norm(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

// The serial formulas on one whole tensor.
struct Serial {
  std::vector<double> w, m, v;

  void step(const OptimizerDeck& deck, bool matrix, const std::vector<double>& grads, std::int64_t n, double rate,
            double scale) {
    const double decay = matrix ? deck.weight_decay : 0.0;
    const double c1 = 1 - std::pow(deck.beta1, static_cast<double>(n));
    const double c2 = 1 - std::pow(deck.beta2, static_cast<double>(n));
    std::vector<double> g = grads, u(w.size());
    for (double& each : g) each *= scale;
    double lars = rate;
    if (matrix) lars = rate * deck.trust * norm(w) / (norm(g) + decay * norm(w));
    for (std::size_t i = 0; i < w.size(); ++i) {
      switch (deck.kind) {
        case OptimizerKind::sgd:
          u[i] = rate * (g[i] + decay * w[i]);
          break;
        case OptimizerKind::momentum:
          m[i] = deck.momentum * m[i] + g[i];
          u[i] = rate * (m[i] + decay * w[i]);
          break;
        case OptimizerKind::lars:
          m[i] = deck.momentum * m[i] + lars * (g[i] + decay * w[i]);
          u[i] = m[i];
          break;
        case OptimizerKind::adamw:
        case OptimizerKind::lamb:
          m[i] = deck.beta1 * m[i] + (1 - deck.beta1) * g[i];
          v[i] = deck.beta2 * v[i] + (1 - deck.beta2) * g[i] * g[i];
          u[i] = m[i] / c1 / (std::sqrt(v[i] / c2) + deck.eps) + decay * w[i];
          if (deck.kind == OptimizerKind::adamw) u[i] *= rate;
          break;
      }
    }
    if (deck.kind == OptimizerKind::lamb) {
      const double trust = matrix ? norm(w) / norm(u) : 1.0;
      for (double& each : u) each *= rate * trust;
    }
    for (std::size_t i = 0; i < w.size(); ++i) w[i] -= u[i];
  }
};

using UpdateKind = UpdateShard::Kind;

// Three steps against the serial formulas. Returns the weights.
std::vector<std::vector<double>> expect_formula(const OptimizerDeck& deck) {
  Fixture fixture(deck);
  const int ranks = fixture.comms.world().size();
  const std::int64_t parts = deck.shard.kind == UpdateKind::none   ? 1
                             : deck.shard.kind == UpdateKind::data ? ranks
                                                                   : deck.shard.count;
  test::Updating<double> updating(fixture.deck, fixture.comms, fixture.store, fixture.pool);
  const bool two = deck.kind == OptimizerKind::adamw || deck.kind == OptimizerKind::lamb;
  const std::int64_t kinds = two ? 2 : deck.kind == OptimizerKind::sgd ? 0 : 1;
  // ceil(P / parts) of each group; 39 and 4 elements.
  EXPECT_EQ(fixture.ledger.live(MemoryTag::optimizer),
            kinds * ((39 + parts - 1) / parts + (4 + parts - 1) / parts) * 8);
  EXPECT_EQ(updating.optimizer.states().size(), static_cast<std::size_t>(kinds) * 5);

  std::vector<Serial> serial;
  for (const Param<double>& param : fixture.store.params()) {
    const std::vector<double> zeros(param.value.extent(0), 0.0);
    serial.push_back({test::get_values(param.value), zeros, zeros});
  }
  for (std::int64_t step = 1; step <= 3; ++step) {
    fixture.make_gradients(static_cast<std::uint64_t>(step));
    const double rate = 0.01 * static_cast<double>(step), scale = 0.75;
    std::size_t p = 0;
    for (const Param<double>& param : fixture.store.params()) {
      serial[p++].step(deck, param.decays, test::get_values(param.grad), step, rate, scale);
    }
    updating.optimizer.update(step, rate, scale);
    gather_values(updating.plan, fixture.store, deck.gather);
  }
  std::vector<std::vector<double>> weights;
  for (const Param<double>& param : fixture.store.params()) {
    weights.push_back(test::get_values(param.use()));
    const std::vector<double>& expected = serial[weights.size() - 1].w;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(weights.back()[i], expected[i], 1e-14) << param.spec.name << " " << i;
    }
  }
  std::size_t s = 0;
  for (const auto& state : updating.optimizer.states()) {
    const std::vector<double> got = test::get_values(state.values);
    const auto& expected = s < 5 ? serial[s].m : serial[s - 5].v;
    EXPECT_EQ(state.kind, s < 5 ? "m" : "v");
    EXPECT_EQ(static_cast<std::int64_t>(got.size()), state.shard.size());
    if (parts == 1) {
      EXPECT_EQ(got.size(), expected.size());
    }
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto whole = static_cast<std::size_t>(state.shard.global_index(static_cast<std::int64_t>(i)));
      EXPECT_NEAR(got[i], expected[whole], 1e-14) << state.param->spec.name;
    }
    ++s;
  }
  return weights;
}

// Whole and cut over the data ranks; what works element by element agrees bit for bit.
void expect_formula_in_all_parts(OptimizerDeck deck) {
  const int ranks = test::launch().world().size();
  const auto whole = expect_formula(deck);
  const bool by_tensor = deck.kind == OptimizerKind::lars || deck.kind == OptimizerKind::lamb;
  std::vector<UpdateShard> shards = {{UpdateKind::data, 0}};
  for (int n = 1; n <= ranks; ++n) {
    if (ranks % n == 0) shards.push_back({UpdateKind::data_partial, n});
  }
  for (const UpdateShard& shard : shards) {
    for (const ValueGather gather : {ValueGather::eager, ValueGather::lazy}) {
      SCOPED_TRACE("data_partial " + std::to_string(shard.count));
      deck.shard = shard;
      deck.gather = gather;
      const auto cut = expect_formula(deck);  // holds every tensor to 1e-14
      if (!by_tensor) {
        EXPECT_EQ(cut, whole);
      }
    }
  }
}

TEST(Optimizer, Sgd) {
  expect_formula_in_all_parts(deck_of(OptimizerKind::sgd, 0.3));
}
TEST(Optimizer, Momentum) {
  expect_formula_in_all_parts(deck_of(OptimizerKind::momentum, 0.3));
}
TEST(Optimizer, AdamW) {
  expect_formula_in_all_parts(deck_of(OptimizerKind::adamw, 0.3));
}
TEST(Optimizer, Lars) {
  expect_formula_in_all_parts(deck_of(OptimizerKind::lars, 0.3));
}
TEST(Optimizer, Lamb) {
  expect_formula_in_all_parts(deck_of(OptimizerKind::lamb, 0.3));
}

// A tensor without weights or gradient has no ratio of norms: the plain rate.
TEST(Optimizer, TrustRatioOfZeros) {
  for (const OptimizerKind kind : {OptimizerKind::lars, OptimizerKind::lamb}) {
    Fixture fixture(deck_of(kind, 0.0));
    test::Updating<double> updating(fixture.deck, fixture.comms, fixture.store, fixture.pool);
    Param<double>& zero_weight = fixture.store.params()[0];
    Param<double>& zero_gradient = fixture.store.params()[3];
    test::set_values(zero_weight.value, std::vector<double>(15, 0.0));
    test::set_values(zero_weight.grad, std::vector<double>(15, 0.5));
    const std::vector<double> before = test::get_values(zero_gradient.value);
    updating.optimizer.update(1, 0.25, 1.0);
    const double moved = kind == OptimizerKind::lars ? 0.125 : 0.25;
    EXPECT_NEAR(test::get_values(zero_weight.value)[7], -moved, 1e-7);
    EXPECT_EQ(test::get_values(zero_gradient.value), before);
  }
}

// P09: a lost step counter multiplies the next update by about 2.24 (betas 0.9, 0.95).
TEST(Optimizer, P09StepCounter) {
  const auto last_update = [](std::int64_t last_step) {
    Fixture fixture(deck_of(OptimizerKind::adamw, 0.0));
    test::Updating<double> updating(fixture.deck, fixture.comms, fixture.store, fixture.pool);
    const Param<double>& param = fixture.store.params().front();
    const auto one_step = [&](std::int64_t step) {
      test::set_values(param.grad, std::vector<double>(15, 0.25));
      updating.optimizer.update(step, 1e-3, 1.0);
    };
    for (std::int64_t step = 1; step <= 400; ++step) one_step(step);
    const double before = test::get_values(param.value)[0];
    one_step(last_step);
    return before - test::get_values(param.value)[0];
  };
  EXPECT_NEAR(last_update(1) / last_update(401), 2.236, 0.01);
}

TEST(Optimizer, SnapRoundsWeightsTiesToEven) {
  Fixture fixture(deck_of(OptimizerKind::sgd, 0.0));
  fixture.deck.numerics.snap = 8;
  test::Updating<double> updating(fixture.deck, fixture.comms, fixture.store, fixture.pool);
  const Param<double>& param = fixture.store.params().front();
  std::vector<double> w(15, 1.0), g(15, 0.0);
  g[0] = 0x1p-9;         // 1 - 2^-9: a tie between 255 and 256, goes to 256 / 256
  g[1] = 0x3p-9;         // a tie between 254 and 255, goes to 254 / 256
  g[2] = 1.0 + 0x1p-10;  // -2^-10 rounds to zero, never to -0
  test::set_values(param.value, w);
  test::set_values(param.grad, g);
  updating.optimizer.update(1, 1.0, 1.0);
  const std::vector<double> got = test::get_values(param.value);
  EXPECT_EQ(got[0], 1.0);
  EXPECT_EQ(got[1], 254.0 / 256);
  EXPECT_EQ(got[2], 0.0);
  EXPECT_FALSE(std::signbit(got[2]));
  EXPECT_EQ(got[3], 1.0);
}

}  // namespace
}  // namespace fourfold
