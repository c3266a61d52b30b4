// Sums of gradients in levels (torus2d, two_level, the sharded update) against the flat sum, and what they move: one
// launch of 12 ranks, groups of it for every mesh.
#include <gtest/gtest.h>

#include <functional>

#include "base/error.hpp"
#include "base/random.hpp"
#include "comm/collectives.hpp"
#include "comm/ledger.hpp"
#include "comm/pmpi_counter.hpp"
#include "shared_pool.hpp"
#include "small_store.hpp"

namespace fourfold {
namespace {

using Kind = UpdateShard::Kind;

const Communicator& world() {
  return test::launch().world();
}

// `body` on the first `ranks` ranks of the launch, where it has as many; all ranks leave together.
void on_ranks(int ranks, const std::function<void(const Communicator&)>& body) {
  if (ranks > world().size()) return;
  if (world().rank() < ranks) {
    std::vector<int> members(static_cast<std::size_t>(ranks));
    for (int r = 0; r < ranks; ++r) members[static_cast<std::size_t>(r)] = r;
    const Communicator group(world(), members, "ranks" + std::to_string(ranks));
    body(group);
  }
  barrier(world(), Phase::control);
}

GridComms comms_of(const Communicator& group, const DenseShape& shape) {
  return GridComms(group, test::grid_of(shape), {{Axis::data}, {Axis::data, Axis::depth}, {Axis::data, Axis::row}});
}

// 90, 15 and 13 elements in three groups: few numbers of parts divide them.
template <class T>
void declare(ParamStore<T>& store) {
  store.declare(test::whole_spec("a", {7, 11}, {Axis::data}));
  store.declare(test::whole_spec("gate", {5, 3}, {Axis::data, Axis::row}));
  store.declare(test::whole_spec("b", {13}, {Axis::data}));
  store.declare(test::whole_spec("norm", {13}, {Axis::data, Axis::depth}));
  store.declare(test::whole_spec("empty", {0, 4}, {Axis::data}));
}

double dyadic(const std::string& name, int rank, std::size_t i) {
  const RandomStream stream = random_stream(11, name, static_cast<std::uint64_t>(rank));
  return std::rint(64 * normal(stream, i)) / 256;
}
double ordinary(const std::string& name, int rank, std::size_t i) {
  return normal(random_stream(11, name, static_cast<std::uint64_t>(rank)), i);
}

template <class T>
using Values = std::vector<std::vector<T>>;  // of each group's buffer, this rank's part

// The flat sum by messages: what the others are compared with.
template <class T>
Values<T> sums_of(const Deck& deck, const GridComms& comms, double (*gradient)(const std::string&, int, std::size_t),
                  const std::function<void(const ParamStore<T>&, const UpdatePlan&)>& plan_check = {});
template <class T>
Values<T> flat_sums_of(Deck deck, const GridComms& comms, double (*gradient)(const std::string&, int, std::size_t)) {
  deck.comm.shared_memory = SharedMemoryUse::off;
  return sums_of<T>(deck, comms, gradient);
}

// Sums of a deck's algorithm, this rank's part of them. `plan_check` looks at the plan, right after the sums.
template <class T>
Values<T> sums_of(const Deck& deck, const GridComms& comms, double (*gradient)(const std::string&, int, std::size_t),
                  const std::function<void(const ParamStore<T>&, const UpdatePlan&)>& plan_check) {
  MemoryLedger memory;
  Pool pool(memory, test::shared_blocks(deck.comm.shared_memory));
  ParamStore<T> store;
  declare(store);
  store.allocate(pool, test::padding(deck, comms));
  test::Updating<T> updating(deck, comms, store, pool);
  for (Param<T>& param : store.params()) {
    std::vector<double> g(param.grad.extent(0));
    for (std::size_t i = 0; i < g.size(); ++i) g[i] = gradient(param.spec.name, comms.world().rank(), i);
    test::set_values(param.grad, g);
  }
  comms.world().ledger().clear();
  test::clear_mpi_traffic();
  updating.reducer.reduce();
  const CommSums moved = comms.world().ledger().total();
  EXPECT_EQ(moved.ring_bytes, test::mpi_traffic().ring_bytes + moved.bytes_shared);
  EXPECT_TRUE(deck.comm.shared_memory != SharedMemoryUse::off || moved.bytes_shared == 0);
  EXPECT_EQ(test::mpi_traffic().outside, 0);
  if (plan_check) plan_check(store, updating.plan);
  Values<T> parts;
  for (std::size_t g = 0; g < store.groups().size(); ++g) {
    const ParamGroup<T>& group = store.groups()[g];
    const Range mine = intersect(updating.plan.group(g).mine, Range{0, group.size});
    parts.push_back(test::get_values(kernels::Vector<T>(group.grads.data() + mine.begin, mine.size())));
  }
  return parts;
}

// The flat sum's values where `plan` keeps them.
template <class T>
Values<T> part_of(const Values<T>& flat, const std::vector<Range>& mine) {
  Values<T> parts;
  for (std::size_t g = 0; g < flat.size(); ++g) {
    parts.emplace_back(flat[g].begin() + mine[g].begin, flat[g].begin() + mine[g].end);
  }
  return parts;
}

struct Mesh {
  std::int64_t x, y, stride;
};

// Grids of x * y ranks whose weights are cut into `stride` parts, by row or by depth.
std::vector<DenseShape> shapes_of(const Mesh& mesh) {
  const int data = static_cast<int>(mesh.x * mesh.y / mesh.stride), stride = static_cast<int>(mesh.stride);
  if (stride == 1) return {{.data = data}};
  return {{.data = data, .row = stride}, {.data = data, .depth = stride}};
}

template <class T>
void expect_torus(const Mesh& mesh, Kind shard, Summation summation) {
  const std::int64_t xm = mesh.x / mesh.stride;
  for (const DenseShape& shape : shapes_of(mesh)) {
    on_ranks(static_cast<int>(mesh.x * mesh.y), [&](const Communicator& group) {
      SCOPED_TRACE("mesh " + std::to_string(mesh.x) + " x " + std::to_string(mesh.y) + " stride " +
                   std::to_string(mesh.stride) + " depth " + std::to_string(shape.depth));
      const GridComms comms = comms_of(group, shape);
      Deck deck;
      deck.numerics.deterministic = summation == Summation::deterministic;
      const Values<T> flat = flat_sums_of<T>(deck, comms, dyadic);
      deck.comm.gradient = GradientAlgorithm::torus2d;
      deck.comm.dims = {mesh.x, mesh.y};
      deck.optimizer.shard.kind = shard;
      std::vector<Range> mine;
      const Values<T> torus = sums_of<T>(deck, comms, dyadic, [&](const ParamStore<T>& store, const UpdatePlan& plan) {
        for (std::size_t g = 0; g < store.groups().size(); ++g) {
          mine.push_back(intersect(plan.group(g).mine, Range{0, store.groups()[g].size}));
        }
        // The group whose ranks skip `stride` neighbours along x, and have columns of their own on y.
        const std::int64_t padded = store.groups()[0].grads.size();
        EXPECT_EQ(padded, (90 + xm * mesh.y - 1) / (xm * mesh.y) * xm * mesh.y);
        if (mesh.y == 1 || xm == 1) return;
        const CommLedger& ledger = group.ledger();
        const CommSums y = ledger.sum(Operation::reduce_scatter, "data:y", Phase::gradient);
        const CommSums x = ledger.sum(Operation::reduce_scatter, "data:x", Phase::gradient);
        EXPECT_EQ(x.elements * mesh.y, y.elements);  // what enters the x phase is 1/Y of what entered the y phase
        EXPECT_EQ(y.elements, padded);
        // One direction: S [(Y-1)/Y + (Xm-1)/(Xm Y)].
        EXPECT_EQ((x.ring_elements + y.ring_elements) * xm * mesh.y, padded * (xm * (mesh.y - 1) + xm - 1));
        const CommSums back_y = ledger.sum(Operation::all_gather, "data:y", Phase::gradient);
        const CommSums back_x = ledger.sum(Operation::all_gather, "data:x", Phase::gradient);
        const bool gathered = shard == Kind::none;
        EXPECT_EQ(back_y.ring_elements, gathered ? y.ring_elements : 0);
        EXPECT_EQ(back_x.ring_elements, gathered ? x.ring_elements : 0);
      });
      EXPECT_EQ(torus, part_of(flat, mine));
    });
  }
}

// A stride of 2 needs an even X: 6 x 2 has 3 peers along x.
TEST(Torus2d, EqualsTheFlatSumAndMovesItsBytes) {
  const std::vector<Mesh> meshes = {{2, 2, 1}, {2, 4, 1}, {4, 2, 1}, {3, 2, 1}, {2, 2, 2},
                                    {2, 4, 2}, {4, 2, 2}, {6, 2, 2}, {4, 1, 1}, {1, 4, 1}};
  for (const Mesh& mesh : meshes) {
    for (const Kind shard : {Kind::none, Kind::data}) {
      expect_torus<double>(mesh, shard, Summation::fast);
      expect_torus<float>(mesh, shard, Summation::deterministic);
    }
  }
}

// Nodes of a machine file: the sum inside them, then between them, and back. Unequal nodes are refused by all ranks.
TEST(TwoLevel, EqualsTheFlatSumAndMovesLessBetweenNodes) {
  struct Nodes {
    int ranks, per_node, row;
  };
  const int real = world().size();
  for (const Nodes& n : {Nodes{4, 2, 1}, Nodes{6, 2, 1}, Nodes{6, 3, 1}, Nodes{8, 4, 1}, Nodes{8, 4, 2}, Nodes{4, 1, 1},
                         Nodes{4, 3, 1}}) {
    if (n.ranks > real) continue;
    test::launch().emulate_nodes(n.per_node);
    for (const Kind shard : {Kind::none, Kind::data}) {
      on_ranks(n.ranks, [&](const Communicator& group) {
        SCOPED_TRACE(std::to_string(n.ranks) + " ranks, " + std::to_string(n.per_node) + " a node, row " +
                     std::to_string(n.row));
        const GridComms comms = comms_of(group, {.data = n.ranks / n.row, .row = n.row});
        Deck deck;
        const Values<double> flat = flat_sums_of<double>(deck, comms, dyadic);
        deck.comm.gradient = GradientAlgorithm::two_level;
        deck.optimizer.shard.kind = shard;
        if (n.ranks % n.per_node != 0) {
          EXPECT_THROW(sums_of<double>(deck, comms, dyadic), Error);
          return;
        }
        std::vector<Range> mine;
        const Values<double> sums =
            sums_of<double>(deck, comms, dyadic, [&](const ParamStore<double>& store, const UpdatePlan& plan) {
              for (std::size_t g = 0; g < store.groups().size(); ++g) {
                mine.push_back(intersect(plan.group(g).mine, Range{0, store.groups()[g].size}));
              }
              const std::int64_t inside = n.per_node / n.row, nodes = n.ranks / n.per_node;
              if (inside == 1) return;
              const std::int64_t padded = store.groups()[0].grads.size(), piece = padded / inside;
              const CommLedger& ledger = group.ledger();
              const auto moved = [&](Operation operation, const char* level) {
                return ledger.sum(operation, level, Phase::gradient).ring_elements;
              };
              EXPECT_EQ(moved(Operation::reduce_scatter, "data:node"), padded - piece);
              EXPECT_EQ(ledger.sum(Operation::reduce_scatter, "data:node", Phase::gradient).bytes_between_nodes, 0);
              if (shard == Kind::none) {
                EXPECT_EQ(moved(Operation::all_reduce, "data:nodes"), 2 * (piece - piece / nodes));
                EXPECT_EQ(moved(Operation::all_gather, "data:node"), padded - piece);
              } else {
                EXPECT_EQ(moved(Operation::reduce_scatter, "data:nodes"), piece - piece / nodes);
              }
            });
        EXPECT_EQ(sums, part_of(flat, mine));
      });
    }
  }
  test::launch().emulate_nodes(real);
}

// Any bucket, waited for at once or not: the same bits; and the coordinate order of the flat deterministic sum.
TEST(ShardedSums, NoBucketAndNoOverlapChangesABit) {
  for (const int ranks : {2, 3, 4}) {
    on_ranks(ranks, [&](const Communicator& group) {
      const GridComms comms = comms_of(group, {.data = ranks});
      Deck deck;
      deck.numerics.deterministic = true;
      const Values<double> flat = flat_sums_of<double>(deck, comms, ordinary);
      std::vector<UpdateShard> shards = {{Kind::data, 0}, {Kind::none, 0}};
      if (ranks == 4) shards.push_back({Kind::data_partial, 2});
      for (const UpdateShard& shard : shards) {
        deck.optimizer.shard = shard;
        std::vector<Values<double>> all;
        for (const std::int64_t bytes : {std::int64_t{1}, std::int64_t{24}, std::int64_t{200}, std::int64_t{1} << 20}) {
          for (const bool overlap : {true, false}) {
            deck.comm.bucket_bytes = bytes;
            deck.parallel.overlap = overlap;
            std::vector<Range> mine;
            all.push_back(
                sums_of<double>(deck, comms, ordinary, [&](const ParamStore<double>& store, const UpdatePlan& plan) {
                  for (std::size_t g = 0; g < store.groups().size(); ++g) {
                    mine.push_back(intersect(plan.group(g).mine, Range{0, store.groups()[g].size}));
                  }
                }));
            EXPECT_EQ(all.back(), all.front()) << bytes;
            if (shard.kind == Kind::data) {
              EXPECT_EQ(all.back(), part_of(flat, mine));
            }
          }
        }
      }
    });
  }
}

// The sharded step moves what a ring all-reduce of the padded buffer moves: of P elements where R divides P, and
// exactly the padding more otherwise.
TEST(ShardedSums, WireBytesAreThoseOfAnAllReduceAndThePadding) {
  for (const int ranks : {2, 3, 4, 5}) {
    for (const std::int64_t partial : {0, 2}) {
      if (partial > 0 && ranks != 4) continue;
      on_ranks(ranks, [&](const Communicator& group) {
        const GridComms comms = comms_of(group, {.data = ranks});
        Deck deck;
        deck.optimizer.shard = {partial > 0 ? Kind::data_partial : Kind::data, partial};
        MemoryLedger memory;
        Pool pool(memory, test::shared_blocks());
        ParamStore<double> store;
        store.declare(test::whole_spec("a", {7, 11}, {Axis::data}));
        store.declare(test::whole_spec("b", {13}, {Axis::data}));
        store.allocate(pool, test::padding(deck, comms));
        test::Updating<double> updating(deck, comms, store, pool);
        const std::int64_t shards = partial > 0 ? partial : ranks, part = (90 + shards - 1) / shards;
        EXPECT_EQ(memory.live(MemoryTag::parameters), part * shards * 8);
        EXPECT_EQ(memory.live(MemoryTag::optimizer), 2 * part * 8);
        group.ledger().clear();
        test::clear_mpi_traffic();
        updating.reducer.reduce();
        updating.optimizer.update(1, 0.1, 1.0);
        gather_values(updating.plan, store, ValueGather::lazy);
        store.finish_gathers();
        const std::int64_t rest = partial > 0 ? 2 * (part - fourfold::part(part, 2, group.rank() / 2).size()) : 0;
        EXPECT_EQ(group.ledger().total().ring_elements, 2 * (shards - 1) * part + rest);
        const CommSums moved = group.ledger().total();
        EXPECT_EQ(test::mpi_traffic().ring_bytes + moved.bytes_shared, moved.ring_bytes);
        if (partial > 0) return;
        // Summed over the ranks: 2 (R - 1) P, and 2 (R - 1) for each element of padding.
        std::int64_t all = group.ledger().total().ring_elements;
        all_reduce_sum<std::int64_t>(group, {&all, 1}, Summation::fast, Phase::control);
        EXPECT_EQ(all, 2 * (ranks - 1) * (90 + (ranks * part - 90)));
      });
    }
  }
}

}  // namespace
}  // namespace fourfold
