#include "data/loader.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.hpp"
#include "d0.hpp"

namespace fourfold {
namespace {

using test::d0_tokens;
using test::ListTokens;
using test::token_deck;

std::shared_ptr<const TokenSource> d0() {
  return std::make_shared<ListTokens>(d0_tokens());
}

// What steps [begin, end) train on, as `coordinates` loaders of one job see it: ids of the samples in their places, and
// the tokens.
struct Log {
  std::vector<std::int64_t> samples;
  std::vector<std::int32_t> ids, targets;
  bool operator==(const Log&) const = default;
};

void append(Log& log, const Batch& batch) {
  log.samples.insert(log.samples.end(), batch.samples.begin(), batch.samples.end());
  log.ids.insert(log.ids.end(), batch.ids.begin(), batch.ids.end());
  log.targets.insert(log.targets.end(), batch.targets.begin(), batch.targets.end());
}

Log run_steps(const Deck& deck, std::int64_t begin, std::int64_t end, std::int64_t coordinates) {
  Log log;
  const Loader loader(deck, d0());  // a fresh job: nothing but the cursor comes over
  for (std::int64_t step = begin; step < end; ++step) {
    for (std::int64_t m = 0; m < deck.batch.micro_batches; ++m) {
      for (std::int64_t c = 0; c < coordinates; ++c) {
        append(log, loader.micro_batch(step * deck.batch.global, m, coordinates, c));
      }
    }
  }
  return log;
}

TEST(D0, Figures) {
  const std::vector<std::int32_t> tokens = d0_tokens();
  EXPECT_EQ(tokens.size(), 13054u);
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), 256), 512);
  const Loader loader(token_deck(32, 16, 1), d0());
  EXPECT_EQ(loader.samples(), 407);
  EXPECT_EQ(loader.targets_in_step(0, 1, 0), 16 * 32);
}

TEST(D0, P55EachSampleOnceAnEpochAndTheCounterRunsOn) {
  // 407 = 25 x 16 + 7: step 26 takes the last 7 samples of the first epoch and the first 9 of the second.
  const Log log = run_steps(token_deck(32, 16, 1), 0, 51, 1);  // 816 >= 2 x 407
  std::vector<std::int64_t> all(407);
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::int64_t> first(log.samples.begin(), log.samples.begin() + 407);
  std::vector<std::int64_t> second(log.samples.begin() + 407, log.samples.begin() + 814);
  EXPECT_NE(first, second);
  std::sort(first.begin(), first.end());
  std::sort(second.begin(), second.end());
  EXPECT_EQ(first, all);
  EXPECT_EQ(second, all);
}

TEST(D0, TokensAndTargetsOfEverySample) {
  const std::vector<std::int32_t> tokens = d0_tokens();
  const Log log = run_steps(token_deck(32, 16, 1), 0, 26, 1);
  for (std::size_t i = 0; i < log.samples.size(); ++i) {
    const std::size_t first = static_cast<std::size_t>(log.samples[i]) * 32;
    for (std::size_t t = 0; t < 32; ++t) {
      ASSERT_EQ(log.ids[i * 32 + t], tokens[first + t]);
      ASSERT_EQ(log.targets[i * 32 + t], tokens[first + t + 1]);
    }
  }
}

TEST(D0, P55RestartsOnOtherCoordinatesGiveTheUninterruptedList) {
  // Batch 16: an epoch ends inside step 26. Batch 11: exactly at the end of step 37. Batch 407: with every step.
  struct Case {
    std::int64_t global, steps;
    std::vector<std::int64_t> stops;
  };
  for (const Case& c : {Case{16, 55, {10, 24, 25, 26, 27}}, Case{11, 80, {10, 36, 37, 38}}, Case{407, 4, {1, 2, 3}}}) {
    for (const std::int64_t micro_batches : {std::int64_t{1}, c.global}) {
      const Deck deck = token_deck(32, c.global, micro_batches);
      const Log whole = run_steps(deck, 0, c.steps, 1);
      ASSERT_EQ(static_cast<std::int64_t>(whole.samples.size()), c.global * c.steps);
      for (const std::int64_t stop : c.stops) {
        for (const std::int64_t before : {1, 2, 4}) {
          for (const std::int64_t after : {1, 2, 4}) {
            Log log = run_steps(deck, 0, stop, before);
            const Log rest = run_steps(deck, stop, c.steps, after);
            log.samples.insert(log.samples.end(), rest.samples.begin(), rest.samples.end());
            log.ids.insert(log.ids.end(), rest.ids.begin(), rest.ids.end());
            log.targets.insert(log.targets.end(), rest.targets.begin(), rest.targets.end());
            ASSERT_TRUE(log == whole) << "batch " << c.global << " stop " << stop << " on " << before << " then "
                                      << after;
          }
        }
      }
    }
  }
}

TEST(Loader, MicroBatchesAndCoordinatesTileTheStep) {
  const std::int64_t cursor = 400;  // the step crosses the epoch's end
  const Log whole = run_steps(token_deck(32, 16, 1), 25, 26, 1);
  EXPECT_EQ(whole.samples.size(), 16u);
  for (const std::int64_t micro_batches : {1, 2, 4, 8, 16}) {
    const Loader loader(token_deck(32, 16, micro_batches), d0());
    const std::int64_t run = 16 / micro_batches;
    for (const std::int64_t coordinates : {1, 2, 3, 4, 8, 20}) {
      Log log;
      std::int64_t place = 0;
      Batch batch;
      for (std::int64_t m = 0; m < micro_batches; ++m) {
        for (std::int64_t c = 0; c < coordinates; ++c) {
          batch = loader.micro_batch(cursor, m, coordinates, c, std::move(batch));
          ASSERT_EQ(batch.first_sample, place);
          ASSERT_EQ(batch.sequences, run / coordinates + (c < run % coordinates ? 1 : 0));
          ASSERT_EQ(batch.tokens, 32);
          ASSERT_EQ(batch.ids.size(), static_cast<std::size_t>(batch.rows()));
          ASSERT_EQ(batch.targets.size(), static_cast<std::size_t>(batch.rows()));
          place += batch.sequences;
          append(log, batch);
        }
      }
      EXPECT_EQ(place, 16);
      EXPECT_TRUE(log == whole) << micro_batches << " micro-batches on " << coordinates << " coordinates";
    }
  }
}

TEST(Loader, P56OrderDependsOnNeitherStepsNorBatch) {
  Deck other = token_deck(32, 44, 4);
  other.run.steps = 100000;
  const Loader a(token_deck(32, 16, 1), d0()), b(other, d0());
  for (std::int64_t k = 0; k < 2000; ++k) ASSERT_EQ(a.sample(k), b.sample(k));
  EXPECT_EQ(a.fingerprint(), b.fingerprint());
}

TEST(Loader, P56FingerprintTellsDataSequenceAndSeed) {
  const Loader base(token_deck(32, 16, 1), d0());
  std::vector<std::int32_t> more = d0_tokens();
  more.push_back(256);
  Deck seed = token_deck(32, 16, 1), split = token_deck(32, 16, 1);
  seed.run.seed = 99;
  split.data.valid_fraction = 0.1;
  const Loader longer(token_deck(32, 16, 1), std::make_shared<ListTokens>(more)), wider(token_deck(64, 16, 1), d0()),
      seeded(seed, d0()), cut(split, d0());
  for (const Loader* other : {&longer, &wider, &seeded, &cut}) {
    EXPECT_NE(base.fingerprint().hash, other->fingerprint().hash) << other->fingerprint().text;
  }
  EXPECT_EQ(base.fingerprint().text,
            "train\nlist 13054\nsequence 32\ntraining samples 407\nvalidation samples 0\nseed 1234\n");
}

TEST(Loader, ValidationIsTheTailAndSharesNoTarget) {
  for (const double fraction : {0.001, 0.02, 0.5, 0.999}) {
    Deck deck = token_deck(32, 16, 1);
    deck.data.valid_fraction = fraction;
    const Loader loader(deck, d0());
    const std::int64_t expected = std::clamp<std::int64_t>(std::llround(fraction * 407), 1, 406);
    ASSERT_EQ(loader.eval_samples(), expected);
    ASSERT_EQ(loader.samples(), 407 - expected);
    const std::vector<std::int32_t> tokens = d0_tokens();
    const std::size_t cut = static_cast<std::size_t>(407 - expected) * 32;
    std::vector<std::int32_t> held_out;
    for (std::int64_t i = 0; i < loader.eval_batches(); ++i) {
      const Batch batch = loader.eval_batch(i, 1, 0);
      held_out.insert(held_out.end(), batch.targets.begin(), batch.targets.end());
    }
    // Targets cut + 1 .. 407 x 32; training targets end at cut.
    EXPECT_EQ(held_out, std::vector<std::int32_t>(tokens.begin() + static_cast<std::ptrdiff_t>(cut) + 1,
                                                  tokens.begin() + 407 * 32 + 1));
    std::int64_t largest = 0;
    for (std::int64_t k = 0; k < loader.samples(); ++k) largest = std::max(largest, loader.sample(k));
    EXPECT_EQ(largest, 407 - expected - 1);
    const auto bytes = std::count_if(held_out.begin(), held_out.end(), [](std::int32_t id) { return id < 256; });
    EXPECT_EQ(loader.eval_bytes(), bytes);
    EXPECT_EQ(loader.eval_targets(), static_cast<std::int64_t>(held_out.size()));
    EXPECT_EQ(static_cast<std::int64_t>(loader.eval_text().size()), bytes);
  }
}

TEST(Loader, EvaluationTakesEachSampleOnce) {
  for (const std::int64_t samples : {997, 1000}) {
    for (const std::int64_t limit : {std::int64_t{0}, std::int64_t{256}, samples, samples + 5}) {
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(samples * 4 + 1));
      for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i * 31 % 251);
      Deck deck = token_deck(4, 48, 2);
      deck.eval.samples = limit;
      const Loader loader(deck, d0(), std::make_shared<ListTokens>(tokens));
      const std::int64_t wanted = limit == 256 ? 256 : samples;
      ASSERT_EQ(loader.eval_samples(), wanted);
      for (const std::int64_t coordinates : {1, 2, 3, 4, 6, 8, 30}) {
        std::int64_t next = 0;
        for (std::int64_t i = 0; i < loader.eval_batches(); ++i) {
          for (std::int64_t c = 0; c < coordinates; ++c) {
            const Batch batch = loader.eval_batch(i, coordinates, c);
            ASSERT_EQ(batch.first_sample, next);
            ASSERT_LE(batch.sequences, (24 + coordinates - 1) / coordinates);
            for (std::int64_t s = 0; s < batch.sequences; ++s, ++next) {
              ASSERT_EQ(batch.samples[static_cast<std::size_t>(s)], next);
              ASSERT_EQ(batch.ids[static_cast<std::size_t>(s * 4)], next * 4 * 31 % 251);
            }
          }
        }
        EXPECT_EQ(next, wanted) << samples << " samples on " << coordinates << " coordinates";
      }
    }
  }
}

TEST(Loader, ReusedBatchKeepsItsMemory) {
  const Loader loader(token_deck(32, 16, 1), d0());
  Batch batch = loader.micro_batch(0, 0, 1, 0);
  const std::int32_t* ids = batch.ids.data();
  batch = loader.micro_batch(16, 0, 1, 0, std::move(batch));
  EXPECT_EQ(batch.ids.data(), ids);
  EXPECT_EQ(batch.ids, loader.micro_batch(16, 0, 1, 0).ids);
}

}  // namespace
}  // namespace fourfold
