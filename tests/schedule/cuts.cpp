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

std::int64_t largest(const std::vector<std::int64_t>& costs, const std::vector<Range>& cuts) {
  std::int64_t most = 0;
  for (const Range& cut : cuts) {
    std::int64_t sum = 0;
    for (std::int64_t i = cut.begin; i < cut.end; ++i) sum += costs[static_cast<std::size_t>(i)];
    most = std::max(most, sum);
  }
  return most;
}

// The best of all cuts, tried one by one.
std::int64_t best(const std::vector<std::int64_t>& costs, std::size_t begin, std::int64_t parts) {
  std::int64_t sum = 0, least = std::numeric_limits<std::int64_t>::max();
  if (parts == 1) {
    for (std::size_t i = begin; i < costs.size(); ++i) sum += costs[i];
    return sum;
  }
  for (std::size_t end = begin; end + static_cast<std::size_t>(parts) - 1 < costs.size(); ++end) {
    sum += costs[end];
    least = std::min(least, std::max(sum, best(costs, end + 1, parts - 1)));
  }
  return least;
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
    std::vector<std::int64_t> costs(1 + engine() % 9);
    for (std::int64_t& cost : costs) cost = static_cast<std::int64_t>(engine() % (trial % 3 == 0 ? 3 : 40));
    for (std::int64_t parts = 1; parts <= std::ssize(costs); ++parts) {
      const std::vector<Range> cuts = cut_by_cost(costs, parts);
      ASSERT_EQ(std::ssize(cuts), parts);
      expect_every_unit_once(cuts, std::ssize(costs));
      ASSERT_EQ(largest(costs, cuts), best(costs, 0, parts));
    }
  }
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
  PassTimes sum;
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < units.size(); ++i) {
    EXPECT_EQ(units[i].name, names[i]);
    EXPECT_EQ(units[i].layers.begin, begin);
    begin = units[i].layers.end;
    sum.forward += units[i].flops.forward;
    sum.input += units[i].flops.input;
    sum.weight += units[i].flops.weight;
  }
  EXPECT_EQ(begin, std::ssize(graph.layers));
  EXPECT_EQ(sum.forward, graph.forward_flops());
  EXPECT_EQ(sum.total(), graph.training_flops());
  EXPECT_EQ(units[0].flops.forward, 0);
  EXPECT_EQ(units[4].flops.forward, 2 * 64 * 32);
  EXPECT_EQ(units[4].layers.size(), 2);  // final norm and head

  EXPECT_EQ(model_units(graph_of("{kind: mlp, widths: [4, 8, 8, 2]}")).size(), 3u);
  EXPECT_EQ(model_units(graph_of("{kind: embedding, vocab: 64, hidden: 8}")).size(), 2u);
}

// A large vocabulary makes a head of several blocks' cost: the last stage gets fewer of them.
TEST(Cuts, TheHeadIsCounted) {
  const std::vector<ModelUnit> units =
      model_units(graph_of("{layers: 8, hidden: 32, heads: 4, vocab: 800, sequence: 16}"));
  std::vector<std::int64_t> costs;
  for (const ModelUnit& unit : units) costs.push_back(unit.flops.total());
  const std::int64_t blocks = costs.back() / costs[1];
  EXPECT_GE(blocks, 1);
  const std::vector<Range> cuts = cut_by_cost(costs, 4);
  EXPECT_LT(cuts[3].size() - 1, 2);  // blocks beside the head, of the two that an even cut gives
  const std::vector<PassTimes> flops = chunk_flops(units, cuts);
  std::int64_t sum = 0;
  for (const PassTimes& chunk : flops) sum += chunk.total();
  EXPECT_EQ(sum, std::accumulate(costs.begin(), costs.end(), std::int64_t{0}));
}

}  // namespace fourfold::test
