// Corpora by weight, and targets that are masked after the ends of documents.
#include "data/mixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "d0.hpp"
#include "data/loader.hpp"
#include "data/token_writer.hpp"
#include "files.hpp"

namespace fourfold {
namespace {

TEST(Mixture, OneCorpusIsItsOrder) {
  const MixedOrder mixed(7, {407}, {1});
  const SampleOrder alone(7, 407);
  for (std::int64_t k = 0; k < 1000; ++k) EXPECT_EQ(mixed.at(k), alone.at(k));
}

TEST(Mixture, SharesHoldAtEveryStepAndNoSampleComesAgainBeforeAll) {
  const std::vector<std::int64_t> sizes{50, 300, 7}, weights{5, 3, 2};
  const MixedOrder order(1234, sizes, weights);
  EXPECT_EQ(order.samples(), 357);
  std::vector<std::int64_t> taken(3);
  std::vector<std::set<std::int64_t>> epoch(3);
  for (std::int64_t k = 0; k < 3000; ++k) {
    const std::int64_t sample = order.at(k);
    const std::size_t corpus = sample < 50 ? 0 : sample < 350 ? 1 : 2;
    EXPECT_TRUE(epoch[corpus].insert(sample).second) << k;
    if (static_cast<std::int64_t>(epoch[corpus].size()) == sizes[corpus]) epoch[corpus].clear();
    ++taken[corpus];
    for (std::size_t c = 0; c < 3; ++c) {
      EXPECT_LE(std::abs(static_cast<double>(taken[c]) - static_cast<double>((k + 1) * weights[c]) / 10.0), 2.0);
    }
    if ((k + 1) % 10 == 0) {
      for (std::size_t c = 0; c < 3; ++c) EXPECT_EQ(taken[c], (k + 1) / 10 * weights[c]);
    }
  }
}

TEST(Mixture, CorporaOfOneSizeHaveOrdersOfTheirOwn) {
  const MixedOrder order(1234, {100, 100}, {1, 1});
  int equal = 0;
  for (std::int64_t k = 0; k < 200; k += 2) equal += order.at(k) % 100 == order.at(k + 1) % 100;
  EXPECT_LT(equal, 10);
}

class Corpora : public testing::Test {
 protected:
  Corpora() {
    deck_.data.train = {folder_.write("a.txt", std::string(1000, 'a')), folder_.write("b.txt", std::string(200, 'b'))};
    deck_.data.weights = {1, 3};
  }
  const test::Folder folder_{"corpora"};
  Deck deck_ = test::token_deck(10, 4, 2);
};

TEST_F(Corpora, AreMixedInTheBatchesOfAnyGrid) {
  const Loader loader(deck_);
  EXPECT_EQ(loader.samples(), 100 + 20);
  for (std::int64_t step = 0; step < 30; ++step) {
    std::vector<std::int64_t> alone, together;
    for (std::int64_t micro = 0; micro < 2; ++micro) {
      const Batch whole = loader.micro_batch(4 * step, micro, 1, 0);
      alone.insert(alone.end(), whole.samples.begin(), whole.samples.end());
      for (std::int64_t at = 0; at < 3; ++at) {
        const Batch part = loader.micro_batch(4 * step, micro, 3, at);
        together.insert(together.end(), part.samples.begin(), part.samples.end());
        for (std::int64_t i = 0; i < part.sequences; ++i) {
          const bool first = part.samples[static_cast<std::size_t>(i)] < 100;
          EXPECT_EQ(part.ids[static_cast<std::size_t>(10 * i)], first ? 'a' : 'b');
        }
      }
    }
    EXPECT_EQ(alone, together);
    EXPECT_EQ(std::count_if(alone.begin(), alone.end(), [](std::int64_t sample) { return sample < 100; }), 1);
  }
}

TEST_F(Corpora, P56StepsAndBatchDoNotChangeTheOrder) {
  const Loader loader(deck_);
  deck_.run.steps = 7;
  deck_.batch.global = 12;
  const Loader other(deck_);
  EXPECT_EQ(loader.fingerprint(), other.fingerprint());
  for (std::int64_t k = 0; k < 500; ++k) EXPECT_EQ(loader.sample(k), other.sample(k));
}

TEST_F(Corpora, TailsOfAllAreHeldOut) {
  deck_.data.valid_fraction = 0.1;
  const Loader loader(deck_);
  EXPECT_EQ(loader.samples(), 90 + 18);
  EXPECT_EQ(loader.eval_samples(), 10 + 2);
  EXPECT_EQ(loader.eval_text(), std::string(99, 'a') + std::string(19, 'b'));
  EXPECT_NE(loader.fingerprint().text.find("text b.txt bytes 200\nweight 3\n"), std::string::npos);
  deck_.data.weights = {1, 4};
  EXPECT_NE(Loader(deck_).fingerprint(), loader.fingerprint());
}

// Bytes of the text among tokens, beside the losses of all of them, would be wrong bits per byte.
TEST_F(Corpora, BytesAreCountedWhereAllIsText) {
  deck_.data.valid_fraction = 0.1;
  EXPECT_EQ(Loader(deck_).eval_bytes(), 99 + 19);
  MegatronWriter writer(folder_.path("tokens"), TokenType::u16);
  writer.add_sequence(std::vector<std::int32_t>(300, 7));
  writer.end_document();
  writer.finish();
  deck_.data.train[0] = folder_.path("tokens.idx");
  EXPECT_EQ(Loader(deck_).eval_bytes(), 0) << "two corpora";
  deck_.data.weights = {};
  EXPECT_EQ(Loader(deck_).eval_bytes(), 0) << "one stream";
}

TEST(DocumentEnds, AreMaskedInTrainingOnly) {
  Deck deck = test::token_deck(32, 11, 1);
  deck.data.end_of_document = 256;
  const auto tokens = std::make_shared<test::ListTokens>(test::d0_tokens());
  const Loader plain(deck, tokens, tokens);
  deck.data.mask_document_ends = true;
  const Loader masked(deck, tokens, tokens);
  EXPECT_TRUE(masked.drops_targets());
  EXPECT_NE(masked.fingerprint(), plain.fingerprint());
  EXPECT_EQ(masked.eval_batch(0, 1, 0).targets, plain.eval_batch(0, 1, 0).targets);
  std::int64_t targets = 0;
  for (std::int64_t step = 0; step < 37; ++step) {  // 37 x 11 = 407: an epoch
    const Batch a = plain.micro_batch(11 * step, 0, 1, 0), b = masked.micro_batch(11 * step, 0, 1, 0);
    EXPECT_EQ(a.ids, b.ids);
    for (std::size_t row = 0; row < a.ids.size(); ++row) {
      EXPECT_EQ(b.targets[row], a.ids[row] == 256 ? -1 : a.targets[row]);
    }
    targets += masked.targets_in_step(11 * step, 1, 0);
  }
  const std::vector<std::int32_t> all = test::d0_tokens();
  EXPECT_EQ(targets, 407 * 32 - std::count(all.begin(), all.begin() + 407 * 32, 256));
}

}  // namespace
}  // namespace fourfold
