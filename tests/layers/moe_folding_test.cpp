// Every MoE grid on every dense grid: outputs, input gradient and every parameter's gradient as of a serial reference.
#include "grid/factorisation.hpp"
#include "moe_on_grid.hpp"
#include "test_support.hpp"

namespace fourfold::test {
namespace {

Step make_step(Index width, Index sequences, Index tokens, Index micro_batches = 1) {
  Step step{micro_batches, sequences, tokens, {}, {}};
  step.x = named_values("x", step.rows() * width, 1);
  step.dy = named_values("dy", step.rows() * width, 1);
  return step;
}

MoeOptions small() {
  MoeOptions o;
  o.width = 10;
  o.experts = 11;  // divisible by no axis
  o.hidden = 7;
  o.top_k = 2;
  return o;
}

struct Case {
  StageShape shape;
  std::uint64_t seed;  // of what is drawn beside it
};

std::vector<Case> foldings(int ranks) {
  std::vector<Case> all;
  for (const DenseShape& dense : dense_factorisations(ranks))
    for (const MoeShape& moe : moe_factorisations(ranks)) all.push_back({{dense, moe}, seed() + all.size()});
  return all;
}

// Options of every kind, drawn; what excludes each other is not drawn together.
MoeOptions draw(std::mt19937_64& engine) {
  const auto one_of = [&](int n) { return static_cast<int>(engine() % static_cast<unsigned>(n)); };
  MoeOptions o = small();
  o.activation = std::vector{ActivationType::swiglu, ActivationType::gelu, ActivationType::relu}[at(one_of(3))];
  o.bias = one_of(3) == 0;
  o.fused_weight = !o.bias && one_of(3) == 0;
  o.score = one_of(2) == 0 ? RouterScore::softmax : RouterScore::sigmoid;
  o.renormalize = one_of(2) == 0;
  o.jitter = one_of(3) == 0 ? 0.1 : 0;
  if (one_of(3) == 0) {
    o.experts = 12;
    o.groups = 4;
    o.top_groups = 2;
  }
  o.top_k = 1 + one_of(3);
  if (one_of(3) == 0) {
    o.capacity.factor = 0.5 + 0.25 * one_of(4);
    o.capacity.scope = one_of(2) == 0 ? CapacityScope::sequence : CapacityScope::micro_batch;
    o.capacity.priority = one_of(2) == 0 ? CapacityPriority::position : CapacityPriority::probability;
  }
  if (one_of(2) == 0) {
    o.balance.aux = 0.3;
    o.balance.scope =
        std::vector{BalanceScope::sequence, BalanceScope::micro_batch, BalanceScope::global_batch}[at(one_of(3))];
  }
  o.balance.z = one_of(2) == 0 ? 0.1 : 0;
  if (one_of(6) == 0) o.forced.kind = ForcedRouting::uniform;
  if (one_of(3) == 0) o.shared_hidden = 5;
  o.shared_gate = o.shared_hidden > 0 && one_of(2) == 0;
  return o;
}

TEST(MoeFolding, EveryFoldingAsSerial) {
  const Communicator& world = launch().world();
  for (const Case& drawn : sample(foldings(world.size()), 12)) {
    std::mt19937_64 engine(drawn.seed);
    LayerOptions options;
    options.sequence_shard = drawn.shape.dense.row > 1 && engine() % 2 == 0;
    options.depth_sequence = drawn.shape.dense.depth > 1 && engine() % 2 == 0;
    if (engine() % 2 == 0) options.summation = Summation::deterministic;
    const MoeOptions o = draw(engine);
    SCOPED_TRACE(text(drawn.shape) + ", seed " + std::to_string(drawn.seed));
    launch().emulate_nodes(2 + static_cast<std::int64_t>(engine() % 3));
    const GridComms comms = make_comms(drawn.shape);
    MoeReference reference(o, make_step(o.width, 6, 16 + static_cast<Index>(engine() % 2), engine() % 2 == 0 ? 1 : 2));
    reference.run();
    Numbers first;
    for (const DispatcherType type :
         {DispatcherType::alltoall, DispatcherType::allgather, DispatcherType::hierarchical}) {
      reference.o.dispatcher = type;
      MoeOnGrid<double> grid(comms, options, reference);
      grid.run();
      EXPECT_LE(grid.y_gap(), 1e-11);
      EXPECT_LE(grid.dx_gap(), 1e-11);
      EXPECT_LE(grid.gradient_gap(), 1e-11);
      const MoeCounts counts = grid.counts();
      EXPECT_EQ(counts.received, static_cast<double>(reference.s.rows() * o.top_k - reference.dropped));
      EXPECT_EQ(counts.dropped, static_cast<double>(reference.dropped));
      EXPECT_EQ(counts.tokens, static_cast<double>(reference.s.rows()));
      for (std::size_t e = 0; e < counts.pairs.size(); ++e)
        EXPECT_EQ(counts.pairs[e], static_cast<double>(reference.load[e]));
      EXPECT_NEAR(counts.z, reference.z, 1e-11);
      if (o.balance.aux > 0) {
        EXPECT_NEAR(counts.aux, reference.aux, 1e-11);
      }
      const Numbers all = grid.all_numbers();
      if (first.empty()) first = all;
      EXPECT_EQ(all, first) << "not bit for bit";
    }
  }
  launch().emulate_nodes(world.size());
}

// Each parameter belongs to one rank among its replicas.
TEST(MoeFolding, ParametersAreOwnedOnce) {
  for (const Case& drawn : sample(foldings(launch().world().size()), 8)) {
    SCOPED_TRACE(text(drawn.shape));
    MoeOptions o = small();
    o.bias = true;
    o.shared_hidden = 5;
    o.shared_gate = true;
    MoeReference reference(o, make_step(o.width, 2, 3));
    reference.run();
    for (Index e = 0; e < o.experts; ++e)  // also of experts that no token chose
      for (const char* which : {".gate.bias", ".up.bias", ".down.bias"})
        reference.param("moe.experts." + std::to_string(e) + which, o.width + o.hidden);
    const GridComms comms = make_comms(drawn.shape);
    MoeOnGrid<double> grid(comms, {}, reference);
    const Index expert = 3 * o.width * o.hidden + 2 * o.hidden + o.width;
    const Index shared = 3 * o.width * o.shared_hidden + 2 * o.shared_hidden + o.width;
    EXPECT_EQ(grid.owned(), o.experts * (o.width + expert) + shared + o.width);
  }
}

// A residual stream of eighths, ReLU experts, one expert a token with a weight of exactly 1: every sum is exact, so
// that all grids give the same bits, and the gate's gradient is zero.
TEST(MoeFolding, DyadicNumbersGiveTheSameBits) {
  const std::vector<Case> all = foldings(launch().world().size());
  MoeOptions o = small();
  o.activation = ActivationType::relu;
  for (const Index top_k : {Index{1}, Index{2}}) {
    o.top_k = top_k;
    Step step = make_step(o.width, 4, 9);
    for (Numbers* values : {&step.x, &step.dy})
      for (double& value : *values) value = std::nearbyint(value * 8) / 8;
    MoeReference reference(o, step);
    reference.run();
    for (auto& [name, values] : reference.params)
      for (double& value : values) value = std::nearbyint(value * 64) / 64;
    for (Index e = 0; e < o.experts; ++e) {
      for (const char* which : {".up.weight", ".down.weight"}) {
        const std::string name = "moe.experts." + std::to_string(e) + which;
        for (double& value : reference.params.try_emplace(name, Numbers(at(o.width * o.hidden), 0)).first->second)
          value = std::nearbyint(value * 64) / 64;
      }
    }
    Numbers y, dx, gradients;
    for (const Case& drawn : sample(all, 5)) {
      SCOPED_TRACE(text(drawn.shape));
      LayerOptions options;
      options.snap = Snap{};
      const GridComms comms = make_comms(drawn.shape);
      MoeOnGrid<double> grid(comms, options, reference);
      grid.run();
      if (y.empty()) {
        y = grid.whole(grid.y);
        dx = grid.whole(grid.dx);
        gradients = grid.whole_gradients();
      }
      EXPECT_EQ(grid.whole(grid.y), y);
      EXPECT_EQ(grid.whole(grid.dx), dx);
      EXPECT_EQ(grid.whole_gradients(), gradients);
      if (top_k == 1) {
        for (Index i = 0; i < o.experts * o.width; ++i) EXPECT_EQ(gradients[at(i)], 0);
      }
    }
  }
}

// fp32 and bf16 follow the same route as the reference of the numbers that they start from.
template <class T>
void check_type(double tolerance) {
  for (const Case& drawn : sample(foldings(launch().world().size()), 3)) {
    SCOPED_TRACE(text(drawn.shape));
    MoeOptions o = small();
    o.balance = {0.1, BalanceScope::sequence, 0.01, 0};
    Step step = make_step(o.width, 4, 9);
    for (Numbers* values : {&step.x, &step.dy})
      for (double& value : *values) value = static_cast<double>(static_cast<T>(value));
    MoeReference reference(o, step);
    reference.run();
    for (auto& [name, values] : reference.params)
      for (double& value : values) value = static_cast<double>(static_cast<T>(value));
    reference.run();
    const GridComms comms = make_comms(drawn.shape);
    MoeOnGrid<T> grid(comms, {}, reference);
    grid.run();
    EXPECT_LE(grid.y_gap(), tolerance);
    EXPECT_LE(grid.dx_gap(), tolerance);
    EXPECT_LE(grid.gradient_gap(), 4 * tolerance);
    EXPECT_EQ(grid.counts().received, static_cast<double>(reference.s.rows() * o.top_k));
  }
}
TEST(MoeFolding, Fp32) {
  check_type<float>(2e-5);
}
TEST(MoeFolding, Bf16) {
  check_type<kernels::bf16>(0.15);
}

// Weights before the second product: the same numbers to rounding, and the experts' outputs are not kept.
TEST(MoeFolding, FusedWeightsKeepLess) {
  for (const Case& drawn : sample(foldings(launch().world().size()), 4)) {
    SCOPED_TRACE(text(drawn.shape));
    MoeReference reference(small(), make_step(10, 6, 16));
    reference.run();
    const GridComms comms = make_comms(drawn.shape);
    Numbers numbers[2];
    std::int64_t kept_bytes[2] = {};
    double pairs = 0;
    for (const bool fused : {false, true}) {
      reference.o.fused_weight = fused;
      MoeOnGrid<double> grid(comms, {}, reference);
      {
        const Tensor<double> x = grid.rows_of(0, reference.s.x);
        typename MoeLayer<double>::Kept kept;
        const std::int64_t before = grid.ledger().live(MemoryTag::activations);
        grid.layer().forward(grid.pass(0), x, &kept);
        kept_bytes[fused] = grid.ledger().live(MemoryTag::activations) - before;
      }
      double tokens = grid.layer().take_counts().tokens;
      pairs = tokens * static_cast<double>(reference.o.top_k);
      grid.run();
      numbers[fused] = grid.all_numbers();
    }
    EXPECT_EQ(kept_bytes[0] - kept_bytes[1], static_cast<std::int64_t>(pairs) * reference.o.width * 8);
    double largest = 0, gap = 0;
    for (std::size_t i = 0; i < numbers[0].size(); ++i) {
      largest = std::max(largest, std::abs(numbers[0][i]));
      gap = std::max(gap, std::abs(numbers[0][i] - numbers[1][i]));
    }
    EXPECT_LE(gap, 1e-14 * largest);
  }
}

// A forward that runs again follows the first decision, even with another gate, and is counted once (P31, P34).
TEST(MoeFolding, P31RecomputeFollowsTheFirstDecision) {
  const int ranks = launch().world().size();
  MoeOptions o = small();
  o.jitter = 0.2;
  o.balance = {0.1, BalanceScope::sequence, 0.01, 0};
  MoeReference reference(o, make_step(o.width, 6, 8, 3));
  reference.run();
  const GridComms comms = make_comms({{ranks, 1, 1, 1}, {1, ranks, 1, 1}});
  MoeOnGrid<double> once(comms, {}, reference);
  MoeOnGrid<double> again(comms, {}, reference);
  once.run();
  again.run(true);
  EXPECT_EQ(once.all_numbers(), again.all_numbers());
  const MoeCounts a = once.counts();
  const MoeCounts b = again.counts();
  EXPECT_EQ(a.pairs, b.pairs);
  EXPECT_EQ(a.aux, b.aux);
  EXPECT_EQ(a.z, b.z);
  EXPECT_EQ(a.received, b.received);

  // Between the two forwards the gate turns round: pairs go where they went.
  MoeOnGrid<double> turned(comms, {}, reference);
  const Tensor<double> x = turned.rows_of(0, reference.s.x);
  turned.layer().forward(turned.pass(0), x, nullptr);
  for (Param<double>& param : turned.store().params()) {
    if (!param.spec.name.ends_with("router.weight")) continue;
    for (Index i = 0; i < param.spec.shard.size(); ++i) param.value(i) *= -1;
  }
  launch().world().ledger().clear();
  typename MoeLayer<double>::Kept kept;
  turned.layer().forward(turned.pass(0), x, &kept);
  const CommSums moved = launch().world().ledger().sum(Operation::all_to_all, "expert", Phase::forward);
  MoeOnGrid<double> plain(comms, {}, reference);
  launch().world().ledger().clear();
  plain.layer().forward(plain.pass(0), x, nullptr);
  const CommSums expected = launch().world().ledger().sum(Operation::all_to_all, "expert", Phase::forward);
  EXPECT_EQ(moved.ring_elements, expected.ring_elements);
}

}  // namespace
}  // namespace fourfold::test
