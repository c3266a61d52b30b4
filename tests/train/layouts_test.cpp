// The same training on 1, 2, 3, 4 and 8 data ranks and with 1, 2 and 4 micro-batches: one launch of 8 ranks.
#include <gtest/gtest.h>

#include <cmath>

#include "comm/launch.hpp"
#include "mpi_test.hpp"
#include "runs.hpp"
#include "test_support.hpp"

namespace fourfold {
namespace {

struct Layout {
  int ranks = 1, micro_batches = 1;
};

constexpr int kGlobal = 48;

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (const int micro_batches : {1, 2, 4}) {
      if (kGlobal % (ranks * micro_batches) == 0 && ranks * micro_batches > 1) all.push_back({ranks, micro_batches});
    }
  }
  return all;
}

std::vector<std::string> overrides(const Layout& layout) {
  return {"batch.micro_batches=" + std::to_string(layout.micro_batches)};
}

std::string name(const Layout& layout) {
  return std::to_string(layout.ranks) + " ranks, " + std::to_string(layout.micro_batches) + " micro-batches";
}

// Every rank computes the reference alone, then compares what the layout gave on it.
template <class Compare>
void compare_layouts(const std::string& yaml, int steps, std::size_t sample_size, Compare compare) {
  if (test::launch().world().size() != 8) GTEST_SKIP() << "NOT TESTED in this launch: the launch of 8 ranks runs it";
  std::vector<test::StepRecord> reference;
  // A communicator of this rank alone.
  const Communicator alone(test::launch().world(), {test::launch().world().rank()}, "alone");
  reference = test::run_steps(test::deck_of(yaml, overrides({}), 1), alone, steps);
  for (const Layout& layout : test::sample(layouts(), sample_size)) {
    test::on_ranks(layout.ranks, [&](const Communicator& world) {
      const Deck deck = test::deck_of(yaml, overrides(layout), layout.ranks);
      const auto records = test::run_steps(deck, world, steps);
      ASSERT_EQ(records.size(), reference.size());
      for (std::size_t i = 0; i < records.size(); ++i) {
        SCOPED_TRACE(name(layout) + ", step " + std::to_string(i + 1));
        compare(reference[i], records[i]);
      }
    });
  }
}

TEST(Layouts, TransformerTo1e11) {
  compare_layouts(test::small_transformer(), 20, 6, [](const test::StepRecord& a, const test::StepRecord& b) {
    EXPECT_LE(std::abs(a.loss - b.loss), 1e-11 * std::abs(a.loss));
    EXPECT_LE(std::abs(a.grad_norm - b.grad_norm), 1e-11 * a.grad_norm);
    EXPECT_LE(test::difference(a.gradients, b.gradients), 1e-11);
    EXPECT_LE(test::difference(a.weights, b.weights), 1e-11);
  });
}

void expect_bitwise(const test::StepRecord& a, const test::StepRecord& b) {
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_EQ(a.grad_norm, b.grad_norm);
  EXPECT_EQ(a.gradients, b.gradients);
  EXPECT_EQ(a.weights, b.weights);
}

TEST(Layouts, DyadicMlpBitForBit) {
  compare_layouts(test::dyadic_mlp(), 12, 14, expect_bitwise);
}
TEST(Layouts, DyadicEmbeddingTiedBitForBit) {
  compare_layouts(test::dyadic_embedding(true), 12, 14, expect_bitwise);
}
TEST(Layouts, DyadicEmbeddingUntiedBitForBit) {
  compare_layouts(test::dyadic_embedding(false), 12, 14, expect_bitwise);
}

// The dyadic runs move: at least 5 % of the weights change in every step.
TEST(Layouts, DyadicWeightsChange) {
  const Communicator alone(test::launch().world(), {test::launch().world().rank()}, "alone");
  for (const std::string& yaml : {test::dyadic_mlp(), test::dyadic_embedding(true), test::dyadic_embedding(false)}) {
    const auto records = test::run_steps(test::deck_of(yaml, overrides({}), 1), alone, 12);
    for (std::size_t i = 1; i < records.size(); ++i) {
      std::size_t changed = 0, all = 0;
      for (const auto& [tensor, values] : records[i].weights) {
        const auto& before = records[i - 1].weights.at(tensor);
        for (std::size_t k = 0; k < values.size(); ++k) changed += values[k] != before[k];
        all += values.size();
      }
      EXPECT_GE(static_cast<double>(changed), 0.05 * static_cast<double>(all)) << "step " << i + 1 << yaml;
    }
  }
}

}  // namespace
}  // namespace fourfold
