// write_deck reads back to the same structs, whatever legal values stand in them.
#include <cmath>
#include <random>

#include "deck/keys.hpp"
#include "deck/writer.hpp"
#include "deck_support.hpp"
#include "test_support.hpp"

namespace fourfold::test {

using Engine = std::mt19937_64;

double random_number(const Limits& limits, Engine& engine) {
  std::uniform_real_distribution<double> exponent(-30, 30);
  const double least = std::isfinite(limits.least) ? limits.least : -1e30;
  for (;;) {
    double value = least + std::pow(10.0, exponent(engine));
    if (std::isfinite(limits.most)) value = least + (limits.most - least) * std::generate_canonical<double, 53>(engine);
    if (limits.hold(value)) return value;
  }
}

std::int64_t random_integer(const Limits& limits, Engine& engine) {
  const auto least = static_cast<std::int64_t>(limits.least);
  const std::int64_t most = std::isfinite(limits.most) ? static_cast<std::int64_t>(limits.most) : INT64_MAX;
  return std::uniform_int_distribution<std::int64_t>(least, most)(engine);
}

std::string random_text(Engine& engine) {
  const std::vector<std::string> pieces = {
      "a", "Z", "7", "_", "-", ".", "/", " ",  "\"", "'",  "\\", "#", ": ", ", ", "[",    "]",    "{",    "}",   "&",
      "*", "!", "|", ">", "%", "@", "`", "\t", "\n", "\r", "~",  "?", "=",  "é",  "true", "null", "1e-3", "yes", "0x1"};
  std::string text;
  const std::size_t length = 1 + engine() % 6;
  for (std::size_t i = 0; i < length; ++i) text += pieces[engine() % pieces.size()];
  return text;
}

Value random_value(const DeckKey& key, Engine& engine) {
  const std::size_t entries = std::min(key.limits.most_entries, key.limits.fewest_entries + engine() % 3);
  switch (key.type) {
    case KeyType::integer:
      return random_integer(key.limits, engine);
    case KeyType::number:
      return random_number(key.limits, engine);
    case KeyType::boolean:
      return engine() % 2 == 0;
    case KeyType::text:
      return random_text(engine);
    case KeyType::choice:
      return key.choices[engine() % key.choices.size()];
    case KeyType::counted_choice:
      if (engine() % 2 == 0) return NamedCount{key.counted, random_integer(key.limits, engine)};
      return NamedCount{key.choices[engine() % key.choices.size()], 0};
    case KeyType::texts: {
      std::vector<std::string> list(entries);
      for (std::string& entry : list) entry = random_text(engine);
      return list;
    }
    case KeyType::integers: {
      std::vector<std::int64_t> list(entries);
      for (std::int64_t& entry : list) entry = random_integer(key.limits, engine);
      return list;
    }
    case KeyType::numbers: {
      std::vector<double> list(entries);
      for (double& entry : list) entry = random_number(key.limits, engine);
      return list;
    }
    case KeyType::grids: {
      std::vector<DenseShape> list(entries);
      for (DenseShape& grid : list) {
        for (int* extent : {&grid.data, &grid.depth, &grid.row, &grid.col}) {
          *extent = static_cast<int>(random_integer(key.limits, engine));
        }
      }
      return list;
    }
  }
  return false;
}

TEST(RoundTrip, RandomDecksReadBack) {
  Engine engine(seed());
  const int decks = full() ? 10000 : 300;
  std::printf("%d decks, FOURFOLD_SEED=%llu\n", decks, static_cast<unsigned long long>(seed()));
  for (int i = 0; i < decks; ++i) {
    Deck deck;
    for (const DeckKey& key : deck_keys()) key.set(deck, random_value(key, engine));
    if (!deck.parallel.stage_grids.empty()) deck.parallel.dense = {0, 1, 1, 1};  // in its place
    const std::string text = write_deck(deck);
    const ReadResult result = read_deck(text, "random.yaml");
    ASSERT_TRUE(result.deck == deck) << text << numbered_list(result.errors);
    // Such decks break rules that span keys, but no key is wrong by itself.
    for (const DeckError& error : result.errors) {
      for (const char* words : {"unknown", "duplicate", "wanted", "missing", "YAML"}) {
        ASSERT_EQ(error.message.find(words), std::string::npos) << error.text();
      }
    }
    ASSERT_EQ(write_deck(result.deck), text);
  }
}

TEST(RoundTrip, ResolvedDeckIsAcceptedAndStays) {
  for (const std::vector<std::string>& overrides : {std::vector<std::string>{},
                                                    {"data.valid_fraction=0.1", "eval.every=5"},
                                                    {"model.moe={experts: 4, every: 2}"},
                                                    {"numerics.snap=8", "precision.compute=fp64"},
                                                    {"parallel.stage_grids=[{row: 2}, {data: 2}]"},
                                                    {"batch={micro: 2, micro_batches: 3}"}}) {
    const ReadResult first = read_small(overrides, 4);
    ASSERT_TRUE(first.errors.empty()) << numbered_list(first.errors);
    const ReadResult second = read_deck(write_deck(first.deck), "deck.yaml", {}, 4);
    EXPECT_TRUE(second.errors.empty()) << numbered_list(second.errors);
    EXPECT_TRUE(second.deck == first.deck);
  }
}

}  // namespace fourfold::test
