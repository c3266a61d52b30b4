#include "data/synthetic.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "base/error.hpp"
#include "data/loader.hpp"

namespace fourfold {
namespace {

Deck mlp_deck(SyntheticKind kind, LossKind loss) {
  Deck deck;
  deck.model.kind = ModelKind::mlp;
  deck.model.widths = {12, 20, 5};
  deck.model.loss = loss;
  deck.data.kind = DataKind::synthetic;
  deck.data.synthetic = kind;
  deck.data.samples = 100;
  deck.data.valid_samples = 30;
  deck.batch.global = 12;
  deck.batch.micro_batches = 3;
  return deck;
}

// All of the step at `cursor`, micro-batches and coordinates side by side.
Batch step(const Loader& loader, std::int64_t cursor, std::int64_t micro_batches, std::int64_t coordinates) {
  Batch all;
  for (std::int64_t m = 0; m < micro_batches; ++m) {
    for (std::int64_t c = 0; c < coordinates; ++c) {
      const Batch part = loader.micro_batch(cursor, m, coordinates, c);
      all.sequences += part.sequences;
      all.samples.insert(all.samples.end(), part.samples.begin(), part.samples.end());
      all.ids.insert(all.ids.end(), part.ids.begin(), part.ids.end());
      all.targets.insert(all.targets.end(), part.targets.begin(), part.targets.end());
      all.inputs.insert(all.inputs.end(), part.inputs.begin(), part.inputs.end());
      all.values.insert(all.values.end(), part.values.begin(), part.values.end());
    }
  }
  return all;
}

TEST(Synthetic, SameOnAnyCoordinatesForEveryKind) {
  for (const SyntheticKind kind : {SyntheticKind::dyadic, SyntheticKind::teacher}) {
    for (const LossKind loss : {LossKind::squared_error, LossKind::cross_entropy}) {
      const Deck deck = mlp_deck(kind, loss);
      const Loader loader(deck);
      EXPECT_EQ(loader.samples(), 100);
      EXPECT_EQ(loader.eval_samples(), 30);
      EXPECT_EQ(loader.eval_bytes(), 0);
      EXPECT_EQ(loader.targets_in_step(0, 1, 0), 12);
      const Batch one = step(loader, 96, 3, 1);  // crosses the epoch's end
      EXPECT_EQ(one.inputs.size(), 12u * 12);
      EXPECT_EQ(one.values.size(), loss == LossKind::squared_error ? 12u * 5 : 0u);
      EXPECT_EQ(one.targets.size(), loss == LossKind::cross_entropy ? 12u : 0u);
      EXPECT_TRUE(one.ids.empty());
      for (const std::int64_t coordinates : {2, 3, 7}) {
        const Batch other = step(Loader(deck), 96, 3, coordinates);
        EXPECT_EQ(one.samples, other.samples);
        EXPECT_EQ(one.inputs, other.inputs);
        EXPECT_EQ(one.values, other.values);
        EXPECT_EQ(one.targets, other.targets);
      }
      Batch reused = loader.eval_batch(0, 1, 0);
      reused = loader.micro_batch(96, 0, 1, 0, std::move(reused));
      EXPECT_EQ(reused.inputs, loader.micro_batch(96, 0, 1, 0).inputs);
      EXPECT_EQ(reused.values, loader.micro_batch(96, 0, 1, 0).values);
      EXPECT_EQ(reused.targets, loader.micro_batch(96, 0, 1, 0).targets);
      // The next epoch shows the same rows again.
      std::set<std::vector<double>> first, second;
      for (std::int64_t k = 0; k < 200; ++k) {
        Batch batch = loader.micro_batch(k, 0, 4, 0);
        ASSERT_EQ(batch.sequences, 1);
        (k < 100 ? first : second).insert(batch.inputs);
      }
      EXPECT_EQ(first.size(), 100u);
      EXPECT_EQ(first, second);
      // Held-out samples are others.
      for (std::int64_t i = 0; i < loader.eval_batches(); ++i) {
        for (std::int64_t c = 0; c < 4; ++c) {
          const Batch batch = loader.eval_batch(i, 4, c);
          EXPECT_TRUE(batch.sequences == 0 || first.count(batch.inputs) == 0);
        }
      }
    }
  }
}

TEST(Synthetic, DyadicNumbersAreMinusOneZeroOneAlike) {
  const Loader loader(mlp_deck(SyntheticKind::dyadic, LossKind::squared_error));
  std::array<int, 3> inputs{}, values{};
  std::map<std::int64_t, std::pair<double, double>> first_two;  // values of each sample
  for (std::int64_t k = 0; k < 100; k += 4) {
    const Batch batch = loader.micro_batch(k, 0, 1, 0);
    for (const double x : batch.inputs) {
      ASSERT_TRUE(x == -1 || x == 0 || x == 1);
      ++inputs[static_cast<std::size_t>(x + 1)];
    }
    for (std::size_t r = 0; r < batch.samples.size(); ++r) {
      first_two[batch.samples[r]] = {batch.values[5 * r], batch.values[5 * r + 1]};
    }
    for (const double x : batch.values) {
      ASSERT_TRUE(x == -1 || x == 0 || x == 1);
      ++values[static_cast<std::size_t>(x + 1)];
    }
  }
  for (const int count : inputs) EXPECT_NEAR(count, 400, 5 * 16.3);  // 1200 draws, five standard deviations
  for (const int count : values) EXPECT_NEAR(count, 500.0 / 3, 5 * 10.5);
  int alike = 0;  // a sample's numbers are its own, not its neighbour's one place on
  for (std::int64_t n = 0; n + 1 < 100; ++n) alike += first_two[n].second == first_two[n + 1].first ? 1 : 0;
  EXPECT_NEAR(alike, 33, 5 * 4.7);
}

TEST(Synthetic, TeacherIsAFunctionOfItsInputs) {
  const Loader regression(mlp_deck(SyntheticKind::teacher, LossKind::squared_error));
  const Loader classes(mlp_deck(SyntheticKind::teacher, LossKind::cross_entropy));
  double squares = 0;
  std::set<double> drawn;
  std::set<std::int32_t> seen;
  for (std::int64_t k = 0; k < 100; k += 4) {
    const Batch numbers = regression.micro_batch(k, 0, 1, 0), labels = classes.micro_batch(k, 0, 1, 0);
    ASSERT_EQ(numbers.inputs, labels.inputs);
    for (const double x : numbers.inputs) squares += x * x / 1200;
    for (const double x : numbers.inputs) EXPECT_TRUE(drawn.insert(x).second) << "each number is drawn once";
    for (std::size_t r = 0; r < 4; ++r) {
      const auto row = numbers.values.begin() + static_cast<std::ptrdiff_t>(5 * r);
      EXPECT_EQ(labels.targets[r], std::max_element(row, row + 5) - row);
      seen.insert(labels.targets[r]);
    }
  }
  EXPECT_NEAR(squares, 1.0, 5 * std::sqrt(2.0 / 1200));
  EXPECT_EQ(seen.size(), 5u);
}

TEST(Synthetic, IdsOfTokenModels) {
  for (const std::int64_t sequence : {0, 8}) {
    Deck deck = mlp_deck(SyntheticKind::dyadic, LossKind::squared_error);
    deck.model.kind = ModelKind::embedding;
    deck.model.vocab = 11;
    deck.model.sequence = sequence;
    const Loader loader(deck);
    const std::int64_t tokens = std::max<std::int64_t>(1, sequence);
    EXPECT_EQ(loader.targets_in_step(0, 1, 0), 12 * tokens);
    const Batch one = step(loader, 96, 3, 1);
    EXPECT_EQ(one.ids, step(loader, 96, 3, 5).ids);
    EXPECT_EQ(one.targets, step(loader, 96, 3, 5).targets);
    EXPECT_EQ(static_cast<std::int64_t>(one.ids.size()), 12 * tokens);
    std::set<std::int32_t> seen(one.ids.begin(), one.ids.end());
    EXPECT_GE(*seen.begin(), 0);
    EXPECT_LT(*seen.rbegin(), 11);
    if (sequence == 8) {
      EXPECT_EQ(seen.size(), 11u);
      for (std::size_t i = 0; i + 1 < 8; ++i) EXPECT_EQ(one.targets[i], one.ids[i + 1]);
    }
  }
}

}  // namespace
}  // namespace fourfold
