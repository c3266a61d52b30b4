#include "deck_support.hpp"

namespace fourfold::test {

TEST(Overrides, TakeThePlaceOfTheDeck) {
  const ReadResult result = read_small({"model.heads=8", "model.ffn={kind: relu, hidden: 7}", "optimizer.lr=1e-3"});
  EXPECT_TRUE(result.errors.empty()) << numbered_list(result.errors);
  EXPECT_EQ(result.deck.model.heads, 8);
  EXPECT_EQ(result.deck.model.head_dim, 4);
  EXPECT_EQ(result.deck.model.ffn, (FeedForwardDeck{FeedForwardKind::relu, 7}));
  EXPECT_EQ(result.deck.model.layers, 2);  // the rest of the block stays
  EXPECT_EQ(result.deck.optimizer.lr, 1e-3);
}

TEST(Overrides, MendAFaultOfTheDeck) {
  EXPECT_EQ(read_deck(kSmallDeck + "optimizer: {lr: fast}\n", "a.yaml", {}, 1).errors.size(), 1u);
  EXPECT_TRUE(read_deck(kSmallDeck + "optimizer: {lr: fast}\n", "a.yaml", {"optimizer.lr=1.0"}, 1).errors.empty());
}

TEST(Overrides, ErrorsNameThemAndComeLast) {
  const ReadResult result = read_deck(kSmallDeck + "optimizer: {clip: -1}\n", "a.yaml",
                                      {"model.heds=3", "optimizer.lr=abc", "nothing", "=3", "run.x.y=1", "eval=3",
                                       "run.steps=1", "run.steps=2", "model.widths=[1", "model.vocab=99"},
                                      1);
  std::vector<std::string> texts;
  for (const DeckError& error : result.errors) texts.push_back(error.text());
  const std::vector<std::string> beginnings = {
      "a.yaml:4:13: optimizer.clip: ",
      "command line: model.heds=3: model.heds: unknown key; nearest: model.heads",
      "command line: nothing: wanted: key.path=value",
      "command line: =3: wanted: key.path=value",
      "command line: run.x.y=1: run.x: unknown key",
      "command line: eval=3: eval: is a block of keys",
      "command line: run.steps=2: run.steps: duplicate key",
      "command line: model.widths=[1: model.widths: not YAML",
      "command line: optimizer.lr=abc: optimizer.lr: abc is not legal",
      "command line: model.vocab=99: model.vocab: 99 is too small"};
  ASSERT_EQ(texts.size(), beginnings.size()) << numbered_list(result.errors);
  for (std::size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(texts[i].find(beginnings[i]), 0u) << texts[i];
}

// A fault of a key that is left out, in a block that only the command line has a key of.
TEST(Overrides, AMissingKeyIsWhereItsBlockIs) {
  const ReadResult result = read_small({"parallel.stages=2", "parallel.schedule=geo"}, 2);
  ASSERT_EQ(result.errors.size(), 1u) << numbered_list(result.errors);
  EXPECT_EQ(result.errors[0].text().find("command line: parallel.schedule=geo: parallel.extra_in_flight: must be"), 0u)
      << result.errors[0].text();
}

TEST(Overrides, ADottedNameInTheDeckIsNoPath) {
  const ReadResult result = read_deck(kSmallDeck + "optimizer.lr: 1.0\n", "a.yaml", {}, 1);
  ASSERT_EQ(result.errors.size(), 1u) << numbered_list(result.errors);
  EXPECT_EQ(result.errors[0].text(), "a.yaml:4:1: optimizer.lr: unknown key; write optimizer: {lr: ...}");
}

}  // namespace fourfold::test
