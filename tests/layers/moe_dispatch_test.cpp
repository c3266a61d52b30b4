// What moves: the two-step exchange against the plain one, the ledger against closed forms, and loads that are uneven
// to the last.
#include "layers/moe/node_exchange.hpp"
#include "moe_on_grid.hpp"
#include "sent_between_nodes.hpp"
#include "test_support.hpp"

namespace fourfold::test {
namespace {

// Elements with their sender, receiver and place in the message.
std::vector<double> outgoing(const std::vector<std::int64_t>& sizes, int ranks, int me) {
  std::vector<double> all;
  for (int r = 0; r < ranks; ++r) {
    for (std::int64_t i = 0; i < sizes[at(me * ranks + r)]; ++i)
      all.push_back(me * 1e6 + r * 1e4 + static_cast<double>(i));
  }
  return all;
}

TEST(MoeDispatch, TwoStepExchangeAsAllToAll) {
  const Communicator& world = launch().world();
  struct Nodes {
    int nodes, ranks_each;
  };
  for (const Nodes& n : {Nodes{2, 2}, Nodes{2, 4}, Nodes{4, 2}, Nodes{3, 2}}) {
    const int ranks = n.nodes * n.ranks_each;
    if (ranks > world.size()) continue;
    launch().emulate_nodes(n.ranks_each);
    std::vector<int> members(at(ranks));
    std::iota(members.begin(), members.end(), 0);
    if (world.rank() >= ranks) continue;
    const Communicator group(world, members, "nodes");
    MemoryLedger ledger;
    Pool pool(ledger);
    group.ledger().clear();
    for (int trial = 0; trial < (full() ? 200 : 40); ++trial) {
      std::mt19937_64 engine(seed() + static_cast<std::uint64_t>(trial));
      std::vector<std::int64_t> sizes(at(ranks * ranks));
      for (std::int64_t& size : sizes)
        size = trial == 0 || engine() % 3 != 0 ? 1 + static_cast<std::int64_t>(engine() % 40) : 0;
      if (trial % 5 == 4) {  // a rank that sends nothing, and one that gets nothing
        const auto empty = static_cast<int>(engine() % static_cast<unsigned>(ranks));
        for (int r = 0; r < ranks; ++r) sizes[at(empty * ranks + r)] = sizes[at(r * ranks + (empty + 1) % ranks)] = 0;
      }
      std::vector<std::int64_t> sent, received;
      std::int64_t total = 0;
      for (int r = 0; r < ranks; ++r) {
        sent.push_back(sizes[at(group.rank() * ranks + r)]);
        received.push_back(sizes[at(r * ranks + group.rank())]);
        total += received.back();
      }
      const std::vector<double> send = outgoing(sizes, ranks, group.rank());
      std::vector<double> plain(at(total)), two_steps(at(total), -1);
      sent_between_nodes = 0;
      all_to_all<double>(group, send, sent, plain, received, Phase::forward);
      double messages[2] = {static_cast<double>(sent_between_nodes), 0};
      sent_between_nodes = 0;
      node_exchange<double>(group, pool, send, two_steps, sizes, Phase::forward);
      messages[1] = static_cast<double>(sent_between_nodes);
      ASSERT_EQ(two_steps, plain);
      all_reduce_sum<double>(group, messages, Summation::deterministic, Phase::control);
      // What the ledger calls sent: between nodes once, and inside where another rank of the node hands it on.
      double elements[2] = {
          static_cast<double>(group.ledger().sum(Operation::send, "nodes", Phase::forward).ring_elements), 0};
      for (int s = 0; s < ranks; ++s) {
        for (int d = 0; d < ranks; ++d) {
          const bool inside = s / n.ranks_each == d / n.ranks_each;
          const int hops = inside ? (s == d ? 0 : 1) : (s % n.ranks_each == d % n.ranks_each ? 1 : 2);
          elements[1] += static_cast<double>(hops * sizes[at(s * ranks + d)]);
        }
      }
      group.ledger().clear();
      all_reduce_sum<double>(group, {elements, 1}, Summation::deterministic, Phase::control);
      EXPECT_EQ(elements[0], elements[1]);
      group.ledger().clear();
      if (trial == 0) {
        const int between = n.nodes * (n.nodes - 1) * n.ranks_each;
        EXPECT_EQ(messages[0], between * n.ranks_each);
        EXPECT_EQ(messages[1], between);
      }
    }
  }
  launch().emulate_nodes(world.size());
}

// One step of a layer on a grid, and what its calls are worth by the README's formulas, rank by rank.
struct Expected {
  std::int64_t n = 0, pairs = 0;       // tokens and kept pairs of this rank
  std::vector<Index> sent, arrived;    // by rank of `expert`
  std::vector<Index> rows, tokens;     // of its group over `expert`: at each rank
  Index group_rows = 0, all_rows = 0;  // of its group over moe_col; of all its experts
};

// Places of tokens and experts, worked out from the reference's choices alone.
class Places {
 public:
  Places(const MoeReference& reference, const GridComms& comms) : r_(reference), comms_(comms) {
    const ProcessGrid& grid = comms.grid();
    const DenseShape& dense = grid.stage(0).dense;
    const Index coordinates = dense.data * dense.depth;
    owner_.resize(at(r_.s.rows()));
    for (Index t = 0; t < r_.s.rows(); ++t) {
      const Index sequence = t / r_.s.tokens;
      Index coordinate = 0;
      while (part(r_.s.sequences, coordinates, coordinate).end <= sequence) ++coordinate;
      const Range held = part(r_.s.sequences, coordinates, coordinate);
      const Index inside = t - held.begin * r_.s.tokens;
      int run = 0;
      while (part(held.size() * r_.s.tokens, dense.row * dense.col, run).end <= inside) ++run;
      owner_[at(t)] = static_cast<int>(coordinate) * dense.row * dense.col + run;  // ranks are numbered so
    }
  }
  Coordinates moe(int rank) const { return comms_.grid().coordinates(rank); }
  int expert_rank(int e) const {
    const int ranks = comms_.grid().extent(0, Axis::expert);
    int rank = 0;
    while (part(r_.o.experts, ranks, rank).end <= e) ++rank;
    return rank;
  }
  // f(owner, expert rank) for each kept pair.
  template <class F>
  void for_each_pair(const F& f) const {
    for (Index p = 0; p < std::ssize(r_.choice); ++p)
      if (r_.choice[at(p)] >= 0) f(owner_[at(p / r_.o.top_k)], expert_rank(r_.choice[at(p)]));
  }
  const std::vector<int>& owners() const { return owner_; }

 private:
  const MoeReference& r_;
  const GridComms& comms_;
  std::vector<int> owner_;
};

Expected expected_on(const Places& places, const GridComms& comms) {
  const int me = launch().world().rank();
  const Coordinates here = comms.here();
  const auto ranks = at(comms.grid().extent(0, Axis::expert));
  Expected e;
  e.sent.resize(ranks);
  e.arrived.resize(ranks);
  e.rows.resize(ranks);
  e.tokens.resize(ranks);
  for (const int owner : places.owners()) {
    const Coordinates c = places.moe(owner);
    if (owner == me) ++e.n;
    if (c.replica == here.replica && c.moe_row == here.moe_row && c.moe_col == here.moe_col) ++e.tokens[at(c.expert)];
  }
  places.for_each_pair([&](int owner, int to) {
    const Coordinates c = places.moe(owner);
    if (owner == me) {
      ++e.sent[at(to)];
      ++e.pairs;
    }
    if (c.replica != here.replica) return;
    const bool mine = to == here.expert;
    if (mine) ++e.all_rows;
    if (mine && c.moe_row == here.moe_row) ++e.group_rows;
    if (c.moe_row != here.moe_row || c.moe_col != here.moe_col) return;
    ++e.rows[at(to)];
    if (mine) ++e.arrived[at(c.expert)];
  });
  return e;
}

Index sum(const std::vector<Index>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), Index{0});
}

std::vector<StageShape> ledger_grids() {
  const int r = launch().world().size();
  std::vector<StageShape> shapes{{{r, 1, 1, 1}, {1, r, 1, 1}}, {{1, r, 1, 1}, {r, 1, 1, 1}}};
  if (r >= 2) {
    shapes.push_back({{1, 1, r, 1}, {1, r, 1, 1}});
    shapes.push_back({{1, 1, 1, r}, {1, 1, r, 1}});
    shapes.push_back({{r, 1, 1, 1}, {1, 1, 1, r}});
    shapes.push_back({{r / 2, 1, 2, 1}, {1, r / 2, 1, 2}});
  }
  if (r == 8) {
    shapes.push_back({{2, 1, 2, 2}, {1, 2, 2, 2}});
    shapes.push_back({{1, 2, 2, 2}, {2, 2, 1, 2}});
    shapes.push_back({{4, 1, 1, 2}, {2, 1, 2, 2}});
  }
  return shapes;
}

TEST(MoeDispatch, LedgerAsTheFormulas) {
  MoeOptions o;
  o.width = 10;
  o.hidden = 7;
  o.experts = 9;
  o.top_k = 2;
  const Index width = o.width;
  for (const StageShape& shape : ledger_grids()) {
    // The fourth: with fused weights.
    for (const int variant : {0, 1, 2, 3}) {
      const DispatcherType type = variant == 3 ? DispatcherType::alltoall
                                               : std::vector{DispatcherType::alltoall, DispatcherType::allgather,
                                                             DispatcherType::hierarchical}[at(variant)];
      SCOPED_TRACE(text(shape) + ", variant " + std::to_string(variant));
      o.dispatcher = type;
      o.fused_weight = variant == 3;
      MoeReference reference(o, {1, 9, 7, named_values("x", 63 * width, 1), named_values("dy", 63 * width, 1)});
      reference.run();
      const GridComms comms = make_comms(shape);
      MoeOnGrid<double> grid(comms, {}, reference);
      CommLedger& ledger = launch().world().ledger();
      ledger.clear();
      grid.run();
      const Expected e = expected_on(Places(reference, comms), comms);
      const Coordinates here = comms.here();
      const auto ring = [&](Operation operation, const char* group, Phase phase) {
        return ledger.sum(operation, group, phase).ring_elements;
      };
      const Index held = part(width, shape.dense.col, here.col).size();
      const Index moe_held = part(width, shape.moe.col, here.moe_col).size();
      const Index hidden = part(o.hidden, shape.moe.row, here.moe_row).size();
      const Index coordinate_rows = grid.pass(0).rows.coordinate.count();
      const int runs = shape.dense.row * shape.dense.col;
      const Index section = part(coordinate_rows, runs, here.row * shape.dense.col + shape.dense.col - 1).end -
                            part(coordinate_rows, runs, here.row * shape.dense.col).begin;
      for (const Phase phase : {Phase::forward, Phase::backward}) {
        // The door, both ways.
        EXPECT_EQ(ring(Operation::all_to_all, "col", phase), (section - e.n) * held + e.n * (width - held));
        EXPECT_EQ(ring(Operation::all_gather, "row", phase),
                  shape.dense.row > 1 ? (coordinate_rows - section) * held : 0);
        // Dispatch and combine.
        const Index remote_out = e.pairs - e.sent[at(here.expert)];
        const Index remote_in = sum(e.arrived) - e.arrived[at(here.expert)];
        const Index exchanged = (remote_out + remote_in) * width;
        const bool backward = phase == Phase::backward;
        const Index one_each = o.fused_weight ? remote_out + (backward ? remote_in : 0) : 0;
        if (type == DispatcherType::alltoall) {
          EXPECT_EQ(ring(Operation::all_to_all, "expert", phase), exchanged + one_each);
        } else if (type == DispatcherType::hierarchical) {
          // One node: each message is direct.
          EXPECT_EQ(ring(Operation::send, "expert", phase), exchanged);
        } else {
          const Index others = sum(e.tokens) - e.tokens[at(here.expert)];
          const Index their_rows = sum(e.rows) - e.rows[at(here.expert)];
          const Index beside = phase == Phase::forward ? 1 : o.top_k;  // numbers of tokens, or weights
          EXPECT_EQ(ring(Operation::all_gather, "expert", phase),
                    shape.moe.expert > 1 ? others * (width + beside) + their_rows * width : 0);
        }
        // The MoE grid's columns and rows.
        EXPECT_EQ(ring(Operation::all_to_all, "moe_col", phase),
                  sum(e.arrived) * (width - moe_held) + (e.group_rows - sum(e.arrived)) * moe_held);
        const Index other_rows = e.all_rows - e.group_rows;
        const Index also = o.fused_weight ? other_rows : 0;
        EXPECT_EQ(ring(Operation::all_gather, "moe_row", phase), other_rows * moe_held + also);
        EXPECT_EQ(ring(Operation::all_gather, "moe_col", phase), o.fused_weight ? e.group_rows - sum(e.arrived) : 0);
        EXPECT_EQ(ring(Operation::reduce_scatter, "moe_row", phase), other_rows * moe_held + (backward ? also : 0));
        const Index summed = e.all_rows * hidden * (phase == Phase::forward ? 2 : 1);  // gate and up
        EXPECT_EQ(ring(Operation::all_reduce, "moe_col", phase),
                  shape.moe.col > 1 ? 2 * (summed - part(summed, shape.moe.col, here.moe_col).size()) : 0);
      }
      // Counts and numbers of pairs.
      const char* replica = "expert+moe_row+moe_col";
      const Index members = shape.moe.expert * shape.moe.row * shape.moe.col;
      EXPECT_EQ(ring(Operation::all_gather, replica, Phase::forward), (members - 1) * (o.experts + 1));
      EXPECT_EQ(ring(Operation::all_to_all, replica, Phase::forward),
                e.pairs * shape.moe.row * shape.moe.col - e.sent[at(here.expert)]);
      EXPECT_EQ(ledger.group_sum(replica).ring_elements, ring(Operation::all_gather, replica, Phase::forward) +
                                                             ring(Operation::all_to_all, replica, Phase::forward));
      // As published: 2 x 8 bytes x D of each pair whose expert is remote, forward, and again backward.
      if (type == DispatcherType::alltoall && shape.moe.row == 1 && shape.moe.col == 1 && !o.fused_weight) {
        double remote[2] = {static_cast<double>(e.pairs - e.sent[at(here.expert)]), 0};
        remote[1] = static_cast<double>(ledger.sum(Operation::all_to_all, "expert", Phase::forward).ring_bytes);
        all_reduce_sum<double>(launch().world(), remote, Summation::deterministic, Phase::control);
        EXPECT_EQ(remote[1], 2 * 8 * static_cast<double>(width) * remote[0]);
      }
    }
  }
}

// All tokens to one expert, an expert never chosen, ranks without tokens, fewer tokens than ranks, no token at all.
TEST(MoeDispatch, P35UnevenToTheLast) {
  const int r = launch().world().size();
  std::vector<StageShape> shapes{
      {{r, 1, 1, 1}, {1, r, 1, 1}}, {{1, 1, r, 1}, {1, 1, r, 1}}, {{1, 1, 1, r}, {1, 1, 1, r}}};
  if (r == 8) shapes.push_back({{2, 2, 2, 1}, {2, 2, 1, 2}});
  for (const StageShape& shape : shapes) {
    const GridComms comms = make_comms(shape);
    for (const DispatcherType type :
         {DispatcherType::alltoall, DispatcherType::allgather, DispatcherType::hierarchical}) {
      for (const auto& [sequences, tokens] : {std::pair<Index, Index>{5, 3}, {1, 1}, {0, 4}}) {
        for (const double first : {50.0, -50.0}) {  // expert 0 always, or never
          SCOPED_TRACE(text(shape) + ", sequences " + std::to_string(sequences));
          MoeOptions o;
          o.width = 5;
          o.hidden = 4;
          o.experts = 8;
          o.top_k = 1;
          o.dispatcher = type;
          o.balance = {0.1, BalanceScope::sequence, 0.1, 0};
          const Index rows = sequences * tokens;
          Step step{1, sequences, tokens, named_values("x", rows * 5, 1), named_values("dy", rows * 5, 1)};
          for (Index t = 0; t < rows; ++t) step.x[at(t * 5)] = 1;
          MoeReference reference(o, step);
          Numbers gate = named_values("moe.router.weight", 8 * 5, 0.1);
          gate[0] = first;
          reference.params["moe.router.weight"] = gate;
          if (rows > 0) reference.run();
          MoeOnGrid<double> grid(comms, {}, reference);
          grid.run();
          if (rows > 0) {
            EXPECT_EQ(reference.load[0], first > 0 ? rows : 0);
            EXPECT_LE(grid.y_gap(), 1e-12);
            EXPECT_LE(grid.dx_gap(), 1e-10);
          }
          EXPECT_LE(grid.gradient_gap(), 1e-10);
          EXPECT_EQ(grid.counts().received, static_cast<double>(rows));
        }
      }
    }
  }
}

}  // namespace
}  // namespace fourfold::test
