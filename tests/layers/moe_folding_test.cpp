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

MoeOptions small(ActivationType activation = ActivationType::swiglu) {
  MoeOptions o;
  o.width = 10;
  o.experts = 11;  // divisible by no axis
  o.hidden = 7;
  o.top_k = 2;
  o.activation = activation;
  return o;
}

std::vector<StageShape> foldings(int ranks) {
  std::vector<StageShape> all;
  for (const DenseShape& dense : dense_factorisations(ranks))
    for (const MoeShape& moe : moe_factorisations(ranks)) all.push_back({dense, moe});
  return all;
}

// All three dispatchers on one grid.
void check(const StageShape& shape, const LayerOptions& options, MoeReference& reference) {
  SCOPED_TRACE(text(shape));
  const GridComms comms = make_comms(shape);
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
    EXPECT_EQ(counts.received, static_cast<double>(reference.s.rows() * reference.o.top_k - reference.dropped));
    EXPECT_EQ(counts.tokens, static_cast<double>(reference.s.rows()));
    const Numbers all = grid.all_numbers();
    if (first.empty()) first = all;
    EXPECT_EQ(all, first) << "not bit for bit";
  }
}

TEST(MoeFolding, EveryFoldingAsSerial) {
  const int ranks = launch().world().size();
  int number = 0;
  for (const StageShape& shape : sample(foldings(ranks), 10)) {
    LayerOptions options;
    options.sequence_shard = shape.dense.row > 1 && number % 2 == 0;
    options.depth_sequence = shape.dense.depth > 1 && number % 3 == 0;
    MoeOptions o = small(number % 3 == 0   ? ActivationType::swiglu
                         : number % 3 == 1 ? ActivationType::gelu
                                           : ActivationType::relu);
    o.bias = number % 3 == 1;
    o.renormalize = number % 2 == 0;
    MoeReference reference(o, make_step(o.width, 5, 16 + number % 2));
    check(shape, options, reference);
    ++number;
  }
}

}  // namespace
}  // namespace fourfold::test
