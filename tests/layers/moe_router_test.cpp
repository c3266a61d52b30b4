// Routing, capacity and the losses of balance: values worked out by hand, and finite differences.
#include "grid/factorisation.hpp"
#include "layers/moe/capacity.hpp"
#include "layers/moe/dispatcher.hpp"
#include "moe_on_grid.hpp"
#include "test_support.hpp"

namespace fourfold::test {
namespace {

// As many of the world's ranks as `moe` has, on a dense grid of the same size.
std::vector<StageShape> grids() {
  const int ranks = launch().world().size();
  std::vector<StageShape> shapes{{{ranks, 1, 1, 1}, {1, ranks, 1, 1}}, {{1, ranks, 1, 1}, {ranks, 1, 1, 1}}};
  if (ranks > 1) {
    shapes.push_back({{1, 1, ranks, 1}, {1, ranks / 2, 2, 1}});
    shapes.push_back({{ranks / 2, 1, 1, 2}, {1, ranks / 2, 1, 2}});
  }
  return shapes;
}

// Tokens whose logits are `logits` (E each): the gate is the unit matrix.
MoeReference with_logits(MoeOptions o, const Numbers& logits, Index tokens, Index micro_batches) {
  o.width = o.experts;
  o.hidden = 3;
  const Index sequences = std::ssize(logits) / (o.experts * tokens);
  MoeReference reference(o, {micro_batches, sequences, tokens, logits, named_values("dy", std::ssize(logits), 1)});
  Numbers unit(at(o.experts * o.experts), 0);
  for (Index e = 0; e < o.experts; ++e) unit[at(e * o.experts + e)] = 1;
  reference.params["moe.router.weight"] = unit;
  reference.run();
  return reference;
}

MoeCounts counts_on(const StageShape& shape, MoeReference& reference) {
  const GridComms comms = make_comms(shape);
  MoeOnGrid<double> grid(comms, {}, reference);
  grid.run();
  EXPECT_LE(grid.gradient_gap(), 1e-12);
  return grid.counts();
}

// Two experts, one choice, four tokens of probabilities (.9, .1) (.8, .2) (.3, .7) (.4, .6): E sum f P is 1 over all of
// them, 1.7 and 1.3 over its halves. A sequence is a token, or two in the second part.
TEST(MoeRouter, P33BalanceOfDeclaredScopes) {
  Numbers logits;
  for (const double p : {0.9, 0.8, 0.3, 0.4}) {
    logits.push_back(std::log(p));
    logits.push_back(std::log(1 - p));
  }
  MoeOptions o;
  o.experts = 2;
  o.top_k = 1;
  o.balance.aux = 1;
  for (const StageShape& shape : grids()) {
    SCOPED_TRACE(text(shape));
    o.balance.scope = BalanceScope::global_batch;
    for (const Index micro_batches : {1, 2, 4}) {
      MoeReference whole = with_logits(o, logits, 1, micro_batches);
      EXPECT_NEAR(counts_on(shape, whole).aux, 1.0, 1e-14);
    }
    o.balance.scope = BalanceScope::micro_batch;
    MoeReference one = with_logits(o, logits, 1, 1);
    EXPECT_NEAR(counts_on(shape, one).aux, 1.0, 1e-14);
    MoeReference halves = with_logits(o, logits, 1, 2);
    EXPECT_NEAR(counts_on(shape, halves).aux, 1.5, 1e-14);
    o.balance.scope = BalanceScope::sequence;
    for (const Index micro_batches : {1, 2}) {
      MoeReference sequences = with_logits(o, logits, 2, micro_batches);
      EXPECT_NEAR(counts_on(shape, sequences).aux, 1.5, 1e-14);
    }
  }
}

// log(e^2 + 1)^2 and log(2 e)^2.
TEST(MoeRouter, P33ZLoss) {
  MoeOptions o;
  o.experts = 2;
  o.top_k = 1;
  o.balance.z = 1;
  for (const StageShape& shape : grids()) {
    SCOPED_TRACE(text(shape));
    for (const Index micro_batches : {1, 2}) {
      MoeReference reference = with_logits(o, {2, 0, 1, 1}, 1, micro_batches);
      EXPECT_NEAR(counts_on(shape, reference).z, 3.695285070, 5e-10);
    }
  }
}

// 16 tokens that all choose experts 0 and 1 of 4: 16 pairs each for a capacity of 8, or 10.
TEST(MoeRouter, P37WhatIsDropped) {
  EXPECT_EQ(expert_capacity(1.0, 16, 2, 4), 8);
  EXPECT_EQ(expert_capacity(1.25, 16, 2, 4), 10);
  EXPECT_EQ(expert_capacity(1.1, 10, 1, 1), 11);
  EXPECT_EQ(expert_capacity(0.3, 10, 1, 10), 1);
  Numbers logits;
  for (int token = 0; token < 16; ++token) logits.insert(logits.end(), {3.0 + token % 5, 3.0 - token % 3, -1.0, -2.0});
  MoeOptions o;
  o.experts = 4;
  o.top_k = 2;
  for (const auto priority : {CapacityPriority::position, CapacityPriority::probability}) {
    o.capacity = {1.0, CapacityScope::micro_batch, priority};
    for (const StageShape& shape : grids()) {
      SCOPED_TRACE(text(shape));
      MoeReference reference = with_logits(o, logits, 4, 1);
      const MoeCounts counts = counts_on(shape, reference);
      EXPECT_EQ(counts.dropped, 16);
      EXPECT_EQ(counts.received, 16);
      EXPECT_EQ(counts.pairs, (std::vector<double>{16, 16, 0, 0}));
    }
  }
}

TEST(MoeRouter, P38ExpertsThatDoNotDivide) {
  const auto sizes = [](Index experts, int ranks) {
    const ExpertPlaces places(experts, ranks);
    std::vector<Index> all;
    for (int r = 0; r < ranks; ++r) all.push_back(places.of_rank(r).size());
    return all;
  };
  EXPECT_EQ(sizes(6, 4), (std::vector<Index>{2, 2, 1, 1}));
  EXPECT_EQ(sizes(30, 8), (std::vector<Index>{4, 4, 4, 4, 4, 4, 3, 3}));
  const int ranks = launch().world().size();
  MoeOptions o;
  o.width = 8;
  o.hidden = 6;
  o.experts = ranks + ranks / 2;
  o.top_k = 1;
  MoeReference reference(o, {1, 4, 5, named_values("x", 20 * 8, 1), named_values("dy", 20 * 8, 1)});
  reference.run();
  const GridComms comms = make_comms({{ranks, 1, 1, 1}, {1, ranks, 1, 1}});
  MoeOnGrid<double> grid(comms, {}, reference);
  grid.run();
  EXPECT_LE(grid.y_gap(), 1e-12);
  EXPECT_LE(grid.gradient_gap(), 1e-12);
}

// The gate's gradient: the same for every number of expert ranks, and as finite differences of the layer's own loss.
TEST(MoeRouter, P40GateGradient) {
  for (const RouterScore score : {RouterScore::softmax, RouterScore::sigmoid}) {
    for (const bool fused : {false, true}) {
      MoeOptions o;
      o.width = 6;
      o.hidden = 5;
      o.experts = 8;
      o.top_k = 2;
      o.score = score;
      o.renormalize = !fused;
      o.fused_weight = fused;
      o.balance = {0.5, BalanceScope::sequence, 0.2, 0};
      MoeReference reference(o, {1, 4, 6, named_values("x", 24 * 6, 1), named_values("dy", 24 * 6, 1)});
      reference.run();
      if (fused != (score == RouterScore::sigmoid) && !full()) continue;
      for (const StageShape& shape : sample(grids(), 2)) {
        SCOPED_TRACE(text(shape));
        const GridComms comms = make_comms(shape);
        MoeOnGrid<double> grid(comms, {}, reference);
        grid.run();
        grid.loss();
        EXPECT_LE(grid.gradient_gap("router.weight"), 1e-11);
        Param<double>& gate = grid.store().params().front();
        ASSERT_TRUE(gate.spec.name.ends_with("router.weight"));
        const Numbers exact = grid.summed_gradient(gate);
        for (Index i = 0; i < 10; ++i) {
          const Index entry = (7 * i + 3) % (o.experts * o.width);
          const double value = gate.value(entry);
          double side[2];
          for (const int sign : {0, 1}) {
            gate.value(entry) = value + (sign == 0 ? -1e-5 : 1e-5);
            grid.run();
            side[sign] = grid.loss();
          }
          gate.value(entry) = value;
          EXPECT_NEAR(exact[at(entry)], (side[1] - side[0]) / 2e-5, 1e-7);
        }
      }
    }
  }
}

// The bias of every rank is the same function of the stage's counts; it moves choices and no weight.
TEST(MoeRouter, P36SelectionBias) {
  const int ranks = launch().world().size();
  MoeOptions o;
  o.width = 6;
  o.hidden = 5;
  o.experts = 4;
  o.top_k = 1;
  o.score = RouterScore::sigmoid;
  o.renormalize = false;
  o.balance.bias_rate = 0.25;
  MoeReference reference(o, {1, 8, 4, named_values("x", 32 * 6, 1), named_values("dy", 32 * 6, 1)});
  reference.run();
  const GridComms comms = make_comms({{ranks, 1, 1, 1}, {1, ranks > 4 ? 4 : ranks, ranks > 4 ? ranks / 4 : 1, 1}});
  MoeOnGrid<double> grid(comms, {}, reference);
  EXPECT_EQ(grid.layer().selection_bias(), Numbers(4, 0));
  grid.run();
  EXPECT_LE(grid.y_gap(), 1e-12);  // zeros: as without
  grid.layer().update_selection_bias({10, 2, 8, 8});
  // Signs of (mean - load): -1, 1, -1, -1, whose mean is -1/2.
  EXPECT_EQ(grid.layer().selection_bias(), (Numbers{-0.125, 0.375, -0.125, -0.125}));
  for (const Numbers& bias : {Numbers{0, 0, 100, 0}, Numbers{0.2, -0.1, 0, 0.05}}) {
    MoeOnGrid<double> biased(comms, {}, reference);
    biased.layer().set_selection_bias(bias);
    reference.selection_bias = bias;
    reference.run();
    biased.run();
    EXPECT_LE(biased.y_gap(), 1e-12);
    EXPECT_LE(biased.gradient_gap(), 1e-12);
    const MoeCounts counts = biased.counts();
    for (std::size_t e = 0; e < 4; ++e) EXPECT_EQ(counts.pairs[e], static_cast<double>(reference.load[e]));
    EXPECT_TRUE(bias[2] < 100 || counts.pairs[2] == 32);
  }
}

// Draws of forced routing: each expert's share is near its weight, the same on every grid.
TEST(MoeRouter, ForcedZipf) {
  MoeOptions o;
  o.width = 4;
  o.hidden = 3;
  o.experts = 16;
  o.top_k = 1;
  o.forced = {ForcedRouting::zipf, 1.0};
  const Index rows = 4000;
  MoeReference reference(o, {1, 40, 100, named_values("x", rows * 4, 1), named_values("dy", rows * 4, 1)});
  double total = 0;
  for (int e = 0; e < 16; ++e) total += 1.0 / (e + 1);
  std::vector<double> first;
  for (const StageShape& shape : grids()) {
    const GridComms comms = make_comms(shape);
    MoeOnGrid<double> grid(comms, {}, reference);
    grid.run();
    const MoeCounts counts = grid.counts();
    for (int e = 0; e < 16; ++e) {
      const double p = 1 / ((e + 1) * total);
      EXPECT_NEAR(counts.pairs[at(e)], rows * p, 5 * std::sqrt(rows * p * (1 - p)));
    }
    if (first.empty()) first = counts.pairs;
    EXPECT_EQ(counts.pairs, first);
  }
}

}  // namespace
}  // namespace fourfold::test
