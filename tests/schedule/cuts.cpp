// Cuts of a model into chunks.
#include "schedule/cuts.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "deck/reader.hpp"
#include "model/describe.hpp"
#include "schedule_support.hpp"
#include "test_support.hpp"

namespace fourfold::test {

// The largest cost of a chunk, then the sum of the squares of all.
using Badness = std::pair<std::int64_t, std::int64_t>;

Badness badness(const std::vector<Range>& cuts, const ChunkCost& cost) {
  Badness found;
  for (std::size_t chunk = 0; chunk < cuts.size(); ++chunk) {
    const std::int64_t here = cost(static_cast<std::int64_t>(chunk), cuts[chunk]);
    found.first = std::max(found.first, here);
    found.second += here * here;
  }
  return found;
}

// The best of all cuts, tried one by one. `cuts`: of the units before `begin`.
Badness best(std::int64_t units, std::int64_t chunks, const ChunkCost& cost, std::vector<Range> cuts = {}) {
  const std::int64_t begin = cuts.empty() ? 0 : cuts.back().end, behind = chunks - std::ssize(cuts) - 1;
  Badness least{std::numeric_limits<std::int64_t>::max(), 0};
  for (std::int64_t end = behind == 0 ? units : begin + 1; end + behind <= units; ++end) {
    cuts.push_back({begin, end});
    least = std::min(least, behind == 0 ? badness(cuts, cost) : best(units, chunks, cost, cuts));
    cuts.pop_back();
  }
  return least;
}

std::int64_t sum_of(const std::vector<std::int64_t>& costs, const Range& units) {
  return std::accumulate(costs.begin() + units.begin, costs.begin() + units.end, std::int64_t{0});
}

std::vector<std::int64_t> random_costs(std::mt19937_64& engine, int trial) {
  std::vector<std::int64_t> costs(1 + engine() % 9);
  for (std::int64_t& cost : costs) cost = static_cast<std::int64_t>(engine() % (trial % 3 == 0 ? 3 : 40));
  return costs;
}

void expect_every_unit_once(const std::vector<Range>& cuts, std::int64_t units) {
  std::int64_t begin = 0;
  for (const Range& cut : cuts) {
    EXPECT_EQ(cut.begin, begin);
    EXPECT_FALSE(cut.empty());
    begin = cut.end;
  }
  EXPECT_EQ(begin, units);
}

TEST(Cuts, ByCostIsTheBest) {
  std::mt19937_64 engine(seed());
  for (int trial = 0; trial < (full() ? 3000 : 300); ++trial) {
    const std::vector<std::int64_t> costs = random_costs(engine, trial);
    const ChunkCost cost = [&](std::int64_t, const Range& units) { return sum_of(costs, units); };
    for (std::int64_t parts = 1; parts <= std::ssize(costs); ++parts) {
      const std::vector<Range> cuts = cut_by_cost(costs, parts);
      ASSERT_EQ(std::ssize(cuts), parts);
      expect_every_unit_once(cuts, std::ssize(costs));
      ASSERT_EQ(badness(cuts, cost), best(std::ssize(costs), parts, cost));
    }
  }
}

// Chunks on stages of different speed.
TEST(Cuts, ByCostOfUnequalStagesIsTheBest) {
  std::mt19937_64 engine(seed());
  for (int trial = 0; trial < (full() ? 3000 : 300); ++trial) {
    const std::vector<std::int64_t> costs = random_costs(engine, trial);
    std::vector<std::int64_t> ranks(costs.size());
    for (std::int64_t& count : ranks) count = 1 + static_cast<std::int64_t>(engine() % 5);
    const ChunkCost cost = [&](std::int64_t chunk, const Range& units) {
      const std::int64_t share = ranks[static_cast<std::size_t>(chunk)];
      return (sum_of(costs, units) + share - 1) / share;
    };
    for (std::int64_t parts = 1; parts <= std::ssize(costs); ++parts) {
      const std::vector<Range> cuts = cut_by_cost(std::ssize(costs), parts, cost);
      expect_every_unit_once(cuts, std::ssize(costs));
      ASSERT_EQ(badness(cuts, cost), best(std::ssize(costs), parts, cost));
    }
  }
}

// T0 on three stages: two blocks are the costliest chunk of many cuts, and the head, which is less, is best beside one
// of the other two; then the first stage has more.
TEST(Cuts, TiesAreCutFlat) {
  EXPECT_EQ(cut_by_cost({0, 9, 9, 9, 9, 4}, 3), (std::vector<Range>{{0, 3}, {3, 4}, {4, 6}}));
  EXPECT_EQ(cut_by_cost({5, 1, 1, 1, 1}, 3), (std::vector<Range>{{0, 1}, {1, 3}, {3, 5}}));
  EXPECT_EQ(cut_by_cost({1, 1, 1}, 2), (std::vector<Range>{{0, 2}, {2, 3}}));
}

TEST(Cuts, ManyUnits) {
  const std::vector<std::int64_t> costs(10000, 1000);
  for (const std::int64_t chunks : {1, 3, 4000, 10000}) {
    const std::vector<Range> cuts = cut_by_cost(costs, chunks);
    expect_every_unit_once(cuts, 10000);
    for (const Range& cut : cuts)
      EXPECT_NEAR(static_cast<double>(cut.size()), 10000.0 / static_cast<double>(chunks), 1);
  }
}

// What a rank does: exact where the shares have a common denominator, else rounded up.
TEST(Cuts, TimesOfRanks) {
  const ForwardWork work{600, 30};
  const RankTimes even({{{1, 4}, {1, 4}}, {{1, 1}, {1, 1}}}, 1e6);
  EXPECT_EQ(even.ticks_per_flop(), 4);
  EXPECT_EQ(even(0, work).forward, 630);
  EXPECT_EQ(even(1, work).forward, 4 * 630);
  // 8 samples over 3 coordinates: one has 3 of them. Two ranks of col share the products and repeat attention.
  const RankTimes uneven({{{3, 16}, {3, 8}}}, 1e6);
  EXPECT_EQ(uneven.ticks_per_flop(), 16);
  EXPECT_EQ(uneven(0, work).forward, 3 * 600 + 6 * 30);
  EXPECT_EQ(uneven(0, work).input, 3 * 600 + 2 * 6 * 30);
  EXPECT_EQ(uneven(0, work).weight, 3 * 600);
  const RankTimes rounded({{{1, 7}, {1, 7}}}, 1e18);
  EXPECT_EQ(rounded.ticks_per_flop(), 1);
  EXPECT_EQ(rounded(0, work).forward, 86 + 5);
}

TEST(Cuts, EmptyChunksAreRefused) {
  try {
    cut_by_cost({1, 2, 3}, 4);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "3 units of the model cannot be cut into 4 chunks, none empty; legal: 1 to 3");
  }
}

TEST(Cuts, ByCounts) {
  const std::vector<Range> cuts = cut_by_counts({2, 1, 3}, 6);
  EXPECT_EQ(cuts, (std::vector<Range>{{0, 2}, {2, 3}, {3, 6}}));
  const auto refusal_of = [](const std::vector<std::int64_t>& counts) -> std::string {
    try {
      cut_by_counts(counts, 6);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal_of({2, 2}), "the chunks have 4 units of the model's 6");
  EXPECT_EQ(refusal_of({2, 0, 4}), "chunk 1 cannot have 0 units of the model; 4 are left of 6");
  EXPECT_EQ(refusal_of({2, 5}), "chunk 1 cannot have 5 units of the model; 4 are left of 6");
}

Graph graph_of(const std::string& model) {
  const ReadResult result =
      read_deck("model: " + model + "\ndata: {kind: synthetic, samples: 8}\n", "deck.yaml", {}, 1);
  EXPECT_TRUE(result.errors.empty()) << numbered_list(result.errors);
  return describe(result.deck.model);
}

TEST(Cuts, UnitsOfModels) {
  const Graph graph = graph_of("{layers: 3, hidden: 32, heads: 4, vocab: 64, sequence: 16}");
  const std::vector<ModelUnit> units = model_units(graph);
  ASSERT_EQ(units.size(), 5u);
  const std::string names[] = {"embedding", "layers.0", "layers.1", "layers.2", "head"};
  ForwardWork sum;
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < units.size(); ++i) {
    EXPECT_EQ(units[i].name, names[i]);
    EXPECT_EQ(units[i].layers.begin, begin);
    begin = units[i].layers.end;
    sum += units[i].work;
  }
  EXPECT_EQ(begin, std::ssize(graph.layers));
  EXPECT_EQ(sum.total(), graph.forward_flops());
  EXPECT_EQ(sum.flops().forward, graph.forward_flops());
  EXPECT_EQ(sum.flops().total(), graph.training_flops());
  EXPECT_EQ(units[0].work.total(), 0);
  EXPECT_EQ(units[4].work.products, 2 * 64 * 32);
  EXPECT_EQ(units[4].layers.size(), 2);  // final norm and head

  EXPECT_EQ(model_units(graph_of("{kind: mlp, widths: [4, 8, 8, 2]}")).size(), 3u);
  EXPECT_EQ(model_units(graph_of("{kind: embedding, vocab: 64, hidden: 8}")).size(), 2u);
}

// A large vocabulary makes a head of several blocks' cost: the last stage gets fewer of them.
TEST(Cuts, TheHeadIsCounted) {
  const std::vector<ModelUnit> units =
      model_units(graph_of("{layers: 8, hidden: 32, heads: 4, vocab: 800, sequence: 16}"));
  std::vector<std::int64_t> costs;
  for (const ModelUnit& unit : units) costs.push_back(unit.work.flops().total());
  const std::int64_t blocks = costs.back() / costs[1];
  EXPECT_GE(blocks, 1);
  const std::vector<Range> cuts = cut_by_cost(costs, 4);
  EXPECT_LT(cuts[3].size() - 1, 2);  // blocks beside the head, of the two that an even cut gives
  ForwardWork sum;
  for (const Range& cut : cuts) sum += work_of(units, cut);
  EXPECT_EQ(sum.flops().total(), std::accumulate(costs.begin(), costs.end(), std::int64_t{0}));
}

}  // namespace fourfold::test
