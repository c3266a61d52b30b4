// What the layer promises on every grid beside its numbers: the order of an expert's rows, what is rounded in the
// dyadic deck, what it holds by Piper's resource model, and that it reads nothing that it did not write.
#include <cstring>
#include <limits>

#include "grid/factorisation.hpp"
#include "layers/moe/dispatcher.hpp"
#include "layers/moe/lists.hpp"
#include "moe_on_grid.hpp"
#include "test_support.hpp"

namespace fourfold::test {
namespace {

std::vector<StageShape> all_foldings() {
  const int ranks = launch().world().size();
  std::vector<StageShape> all;
  for (const DenseShape& dense : dense_factorisations(ranks))
    for (const MoeShape& moe : moe_factorisations(ranks)) all.push_back({dense, moe});
  return all;
}

// One for each MoE grid; the dense grid has no part in what a test of these looks at.
std::vector<StageShape> all_moe_grids() {
  const int ranks = launch().world().size();
  std::vector<StageShape> all;
  for (const MoeShape& moe : moe_factorisations(ranks)) all.push_back({{ranks, 1, 1, 1}, moe});
  return all;
}

// --- the order of rows ---

struct Pair {
  std::int64_t id;
  Index slot;
};

// Which tokens the ranks hold: 40 in all, by quotient and remainder, but none on rank 1.
Range tokens_of(int rank, int ranks) {
  if (ranks < 3) return part(40, ranks, rank);
  return rank == 1 ? Range{} : part(40, ranks - 1, rank == 0 ? 0 : rank - 1);
}

// k different experts of a token, some of them dropped.
std::vector<std::int32_t> choices_of(std::int64_t id, Index experts, Index top_k) {
  std::mt19937_64 engine(seed() + static_cast<std::uint64_t>(id));
  std::vector<std::int32_t> all(at(experts));
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), engine);
  all.resize(at(top_k));
  for (std::int32_t& expert : all) expert = engine() % 5 == 0 ? ~expert : expert;
  return all;
}

// Rows of an expert are by (token, slot), whatever the grid and the dispatcher, and every kept pair is there once.
TEST(MoeLists, RowsOfAnExpertAreInTokenOrder) {
  constexpr Index kExperts = 11, kTopK = 3, kWidth = 9;
  const Communicator& world = launch().world();
  for (const StageShape& shape : all_moe_grids()) {
    const GridComms comms = make_comms(shape);
    MoeOptions o;
    o.width = kWidth;
    o.experts = kExperts;
    o.hidden = 4;
    o.top_k = kTopK;
    MoeReference reference(o, {1, 1, 1, Numbers(at(kWidth)), Numbers(at(kWidth))});
    MoeOnGrid<double> grid(comms, {}, reference);
    const LayerContext<double>& context = grid.context();
    const ExpertPlaces places(kExperts, shape.moe.expert);
    const Range mine = tokens_of(world.rank(), world.size());
    std::vector<std::int64_t> ids;
    std::vector<std::int32_t> chosen;
    for (Index id = mine.begin; id < mine.end; ++id) {
      ids.push_back(id);
      for (const std::int32_t expert : choices_of(id, kExperts, kTopK)) chosen.push_back(expert);
    }
    const auto value = [](std::int64_t id, Index col) { return static_cast<double>(100 * (id + 1) + col); };
    const Tensor<std::int64_t> numbers = on_device(grid.pool(), ids);
    const Tensor<std::int32_t> list = on_device(grid.pool(), chosen);
    const Tensor<std::int32_t> choice(grid.pool(), MemoryTag::buffers, mine.size(), kTopK);
    const Tensor<double> x(grid.pool(), MemoryTag::buffers, mine.size(), kWidth);
    const Tensor<double> weights(grid.pool(), MemoryTag::buffers, mine.size(), kTopK);
    for (Index p = 0; p < choice.size(); ++p) {
      choice.data()[p] = list.data()[p];
      weights.data()[p] = std::ldexp(1.0, static_cast<int>(p % kTopK));  // tells slots apart
    }
    for (Index i = 0; i < x.size(); ++i) x.data()[i] = value(ids[at(i / kWidth)], i % kWidth);

    // Of this rank's experts, from all ranks of its replica.
    const Range held = places.of_rank(comms.here().expert);
    std::vector<std::vector<Pair>> expected(at(held.size()));
    for (int rank = 0; rank < world.size(); ++rank) {
      if (comms.grid().coordinates(rank).replica != comms.here().replica) continue;
      const Range theirs = tokens_of(rank, world.size());
      for (Index id = theirs.begin; id < theirs.end; ++id) {
        const auto experts = choices_of(id, kExperts, kTopK);
        for (Index slot = 0; slot < kTopK; ++slot) {
          if (experts[at(slot)] < 0) continue;
          const Index place = places.place_of()[at(experts[at(slot)])];
          if (place >= held.begin && place < held.end) expected[at(place - held.begin)].push_back({id, slot});
        }
      }
    }
    for (auto& pairs : expected) {
      std::sort(pairs.begin(), pairs.end(),
                [](const Pair& a, const Pair& b) { return a.id * kTopK + a.slot < b.id * kTopK + b.slot; });
    }
    const Range cols = context.part_of(kWidth, Axis::moe_col);
    for (const DispatcherType type :
         {DispatcherType::alltoall, DispatcherType::allgather, DispatcherType::hierarchical}) {
      SCOPED_TRACE(text(shape) + ", dispatcher " + std::to_string(static_cast<int>(type)));
      const Dispatcher<double> dispatcher(context, type, kWidth, places);
      const auto plan = dispatcher.plan(choice, numbers, Phase::forward);
      const Tensor<double> rows = dispatcher.in(plan, x, weights, Phase::forward);
      Numbers wanted;
      Index begin = 0;
      for (std::size_t e = 0; e < expected.size(); ++e) {
        EXPECT_EQ(plan.expert_begin[e], begin);
        begin += std::ssize(expected[e]);
        for (const Pair& pair : expected[e]) {
          for (Index col = cols.begin; col < cols.end; ++col)
            wanted.push_back(value(pair.id, col) * std::ldexp(1.0, static_cast<int>(pair.slot)));
        }
      }
      EXPECT_EQ(plan.rows(), begin);
      EXPECT_EQ(Numbers(rows.data(), rows.data() + rows.size()), wanted);
    }
  }
}

// --- the dyadic deck ---

double snapped(double value, int bits) {
  return std::ldexp(std::nearbyint(std::ldexp(value, bits)), -bits);
}

// y and dx of two experts with a weight of one half each, in plain loops, with the roundings that are documented:
// hidden activations, each pair's output and the sum to `values` bits; gradients of hidden activations, each pair's and
// the sum to `gradients` bits.
struct HalvesReference {
  Numbers y, dx;
};

HalvesReference halves(MoeReference& reference, const Snap& snap) {
  const MoeOptions& o = reference.o;
  HalvesReference result;
  for (Index t = 0; t < reference.s.rows(); ++t) {
    Numbers y(at(o.width), 0), dx(at(o.width), 0);
    for (const char* expert : {"moe.experts.0", "moe.experts.1"}) {
      const Numbers& up = reference.param(std::string(expert) + ".up.weight", o.hidden * o.width);
      const Numbers& down = reference.param(std::string(expert) + ".down.weight", o.width * o.hidden);
      Numbers out(at(o.width), 0), back(at(o.width), 0);
      for (Index h = 0; h < o.hidden; ++h) {
        double sum = 0, gradient = 0;
        for (Index d = 0; d < o.width; ++d) sum += up[at(h * o.width + d)] * reference.s.x[at(t * o.width + d)];
        const double hidden = std::max(snapped(sum, snap.values), 0.0);
        for (Index d = 0; d < o.width; ++d) {
          out[at(d)] += down[at(d * o.hidden + h)] * hidden;
          gradient += down[at(d * o.hidden + h)] * snapped(0.5 * reference.s.dy[at(t * o.width + d)], snap.gradients);
        }
        gradient = hidden > 0 ? snapped(gradient, snap.gradients) : 0;
        for (Index d = 0; d < o.width; ++d) back[at(d)] += up[at(h * o.width + d)] * gradient;
      }
      for (Index d = 0; d < o.width; ++d) {
        y[at(d)] += 0.5 * snapped(out[at(d)], snap.values);
        dx[at(d)] += snapped(back[at(d)], snap.gradients);
      }
    }
    for (const double value : y) result.y.push_back(snapped(value, snap.values));
    for (const double value : dx) result.dx.push_back(snapped(value, snap.gradients));
  }
  return result;
}

TEST(MoeLists, EachPairsRowIsSnapped) {
  MoeOptions o;
  o.width = 10;
  o.hidden = 7;
  o.experts = o.top_k = 2;
  o.activation = ActivationType::relu;
  Step step{1, 4, 9, named_values("x", 36 * o.width, 1), named_values("dy", 36 * o.width, 1)};
  for (Numbers* values : {&step.x, &step.dy})
    for (double& value : *values) value = snapped(value, 3);
  MoeReference reference(o, step);
  reference.params["moe.router.weight"] = Numbers(at(o.experts * o.width), 0);
  for (const char* name : {"moe.experts.0", "moe.experts.1"}) {
    for (const char* which : {".up.weight", ".down.weight"}) {
      Numbers values = reference.param(std::string(name) + which, o.width * o.hidden);
      for (double& value : values) value = snapped(value, 6);
      reference.params[std::string(name) + which] = values;
    }
  }
  LayerOptions options;
  options.snap = Snap{};
  const HalvesReference expected = halves(reference, *options.snap);
  for (const StageShape& shape : sample(all_foldings(), 8)) {
    if (shape.moe.expert > o.experts) continue;
    SCOPED_TRACE(text(shape));
    const GridComms comms = make_comms(shape);
    MoeOnGrid<double> grid(comms, options, reference);
    grid.run();
    EXPECT_EQ(grid.whole(grid.y), expected.y);
    EXPECT_EQ(grid.whole(grid.dx), expected.dx);
  }
}

// --- memory ---

// Piper's model of one layer and a rank (shared/systems, A17), in elements, for loads that are even:
//   parameters and gradients: P_experts / (expert x row x col), and the router, which all ranks hold
//   activations: T h (input) + T k h (combine) + T k h (dispatch) + T k f (hidden)
// with T the rank's own tokens and f what an expert keeps of a hidden row: before and after the activation. On a MoE
// grid with rows and columns the rows of row x col ranks meet: dispatch holds row x col x T k rows of h / col, hidden f
// / row.
TEST(MoeLists, MemoryIsPipersModel) {
  constexpr Index kSequences = 16, kTokens = 8;
  const Index ranks = launch().world().size();
  for (const ActivationType activation : {ActivationType::swiglu, ActivationType::relu}) {
    MoeOptions o;
    o.width = 64;
    o.hidden = 96;
    o.experts = 8;
    o.top_k = 2;
    o.activation = activation;
    o.forced.kind = ForcedRouting::uniform;
    const Index ups = activation == ActivationType::swiglu ? 2 : 1;
    const Index of_experts = o.experts * (ups + 1) * o.hidden * o.width;
    const Index tokens = kSequences * kTokens / ranks;
    for (const StageShape& shape : sample(all_moe_grids(), 3)) {
      SCOPED_TRACE(text(shape) + ", matrices " + std::to_string(ups + 1));
      const Index row = shape.moe.row, col = shape.moe.col;
      MoeReference reference(o, {1, kSequences, kTokens, named_values("x", kSequences * kTokens * o.width, 1), {}});
      const GridComms comms = make_comms(shape);
      MoeOnGrid<double> grid(comms, {}, reference);
      const std::int64_t held = of_experts / (shape.moe.expert * row * col) + o.experts * o.width;
      EXPECT_EQ(grid.ledger().live(MemoryTag::parameters), 8 * held);
      EXPECT_EQ(grid.ledger().live(MemoryTag::gradients), 8 * held);

      const Index pairs = tokens * o.top_k;
      const double model = static_cast<double>(tokens * o.width + pairs * o.width + row * col * pairs * o.width / col +
                                               row * col * pairs * (ups + 1) * o.hidden / row);
      typename MoeLayer<double>::Kept kept;
      grid.layer().forward(grid.pass(0), grid.rows_of(0, reference.s.x), &kept);
      const auto bytes = static_cast<double>(grid.ledger().live(MemoryTag::activations));
      EXPECT_NEAR(bytes / 8, model, 0.05 * model);
    }
  }
}

// --- what was there before ---

// Every new block holds NaN, and what the layer lays aside returns as NaN, too: the numbers stay those of clean
// buffers. (The debug preset fills every buffer at each use, in all tests: FOURFOLD_POISON.)
TEST(MoeLists, P40PoisonedBuffers) {
  MoeOptions o;
  o.width = 10;
  o.hidden = 7;
  o.experts = 11;
  o.top_k = 2;
  o.capacity = {0.75, CapacityScope::micro_batch, CapacityPriority::position};
  o.balance = {0.3, BalanceScope::sequence, 0.1, 0};
  o.shared_hidden = 5;
  o.shared_gate = true;
  for (const bool fused : {false, true}) {
    o.fused_weight = fused;
    o.bias = !fused;
    MoeReference reference(o, {1, 6, 8, named_values("x", 48 * 10, 1), named_values("dy", 48 * 10, 1)});
    reference.run();
    for (const char* which : {".gate.bias", ".up.bias", ".down.bias"})  // also of experts that no token chose
      for (Index e = 0; e < o.experts; ++e)
        reference.param("moe.experts." + std::to_string(e) + which, o.width + o.hidden);
    for (const StageShape& shape : sample(all_foldings(), 6)) {
      const GridComms comms = make_comms(shape);
      for (const DispatcherType type :
           {DispatcherType::alltoall, DispatcherType::allgather, DispatcherType::hierarchical}) {
        SCOPED_TRACE(text(shape) + ", dispatcher " + std::to_string(static_cast<int>(type)));
        reference.o.dispatcher = type;
        MoeOnGrid<double> grid(comms, {}, reference);
        std::int64_t poisoned = 0;
        grid.pool().set_source([&](std::int64_t bytes) {
          ++poisoned;
          std::shared_ptr<std::byte> block(new std::byte[static_cast<std::size_t>(bytes)],
                                           [](const std::byte* old) { delete[] old; });
          std::memset(block.get(), 0xff, static_cast<std::size_t>(bytes));
          return block;
        });
        grid.run();
        EXPECT_GT(poisoned, 10);
        EXPECT_LE(grid.y_gap(), 1e-11);
        EXPECT_LE(grid.dx_gap(), 1e-11);
        EXPECT_LE(grid.gradient_gap(), 1e-11);
      }
    }
  }
}

}  // namespace
}  // namespace fourfold::test
