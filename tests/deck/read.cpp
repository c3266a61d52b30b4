// Whole decks: the example of the design, defaults, positions, and many faults at once.
#include <algorithm>
#include <random>

#include "deck_support.hpp"
#include "test_support.hpp"

namespace fourfold::test {

const std::string kExample = R"(
run:        {name: quickstart, folder: runs/quickstart, steps: 400, seed: 1234}
model:      {kind: transformer, layers: 4, hidden: 256, heads: 8, kv_heads: 4, head_dim: 32, vocab: 257, sequence: 256,
             positions: rope, norm: rms, ffn: {kind: swiglu, hidden: 688}, tie_embeddings: true, dropout: 0.0,
             moe: {every: 2, experts: 8, top_k: 2}}
data:       {train: [corpus/gcide.txt], valid_fraction: 0.02}
batch:      {global: 32, micro: 8}                  # global = micro x coordinates (data x depth) x micro_batches, exactly
optimizer:  {kind: adamw, lr: 3.0e-4, betas: [0.9, 0.95], eps: 1.0e-8, weight_decay: 0.1, clip: 1.0, shard: none,
             schedule: {kind: cosine, warmup: 20, final: 3.0e-5}}
precision:  {compute: fp32}
parallel:   {stages: 1, dense: {data: 2, depth: 1, row: 1, col: 1}, moe: {replica: 1, expert: 2, row: 1, col: 1}, schedule: 1f1b}
eval:       {every: 50, samples: 256}
checkpoint: {every: 100, keep: 2}                   # in run.folder/checkpoints/step_00000100.h5 (+ .commit)
)";

Deck example_deck() {
  Deck deck;
  deck.run.name = "quickstart";
  deck.run.folder = "runs/quickstart";
  deck.run.steps = 400;
  deck.model.layers = 4;
  deck.model.hidden = 256;
  deck.model.heads = 8;
  deck.model.kv_heads = 4;
  deck.model.head_dim = 32;
  deck.model.vocab = 257;
  deck.model.sequence = 256;
  deck.model.ffn = {FeedForwardKind::swiglu, 688};
  deck.model.tie_embeddings = true;
  deck.model.moe.emplace();
  deck.model.moe->every = 2;
  deck.model.moe->experts = 8;
  deck.model.moe->hidden = 688;
  deck.data.train = {"corpus/gcide.txt"};
  deck.data.valid_fraction = 0.02;
  deck.batch = {32, 8, 2};
  deck.optimizer.weight_decay = 0.1;
  deck.optimizer.clip = 1.0;
  deck.optimizer.schedule = {ScheduleKind::cosine, 20, 3e-5};
  deck.parallel.dense = {2, 1, 1, 1};
  deck.parallel.moe = MoeShape{1, 2, 1, 1};
  deck.eval = {50, 256};
  deck.checkpoint.every = 100;
  return deck;
}

TEST(Read, ExampleOfTheDesign) {
  for (const std::optional<std::int64_t> ranks : {std::optional<std::int64_t>(2), std::optional<std::int64_t>()}) {
    const ReadResult result = read_deck(kExample, "example.yaml", {}, ranks);
    EXPECT_TRUE(result.errors.empty()) << numbered_list(result.errors);
    EXPECT_TRUE(result.deck == example_deck());
  }
}

TEST(Read, DefaultsAreThoseOfTheStructs) {
  const ReadResult result = read_small({}, 2);
  ASSERT_TRUE(result.errors.empty()) << numbered_list(result.errors);
  Deck expected;
  expected.run.name = "small";
  expected.run.folder = "runs/small";
  expected.run.steps = 10;
  expected.model.layers = 2;
  expected.model.hidden = 32;
  expected.model.heads = 4;
  expected.model.kv_heads = 4;
  expected.model.head_dim = 8;
  expected.model.vocab = 257;
  expected.model.sequence = 16;
  expected.model.ffn.hidden = 128;
  expected.data.train = {"corpus.txt"};
  expected.batch = {32, 16, 1};
  expected.parallel.dense.data = 2;
  expected.parallel.moe = MoeShape{2, 1, 1, 1};
  EXPECT_TRUE(result.deck == expected);
}

TEST(Read, WithoutARankCountDataStaysOpen) {
  const ReadResult open = read_small({"batch.micro=4"}, std::nullopt);
  EXPECT_TRUE(open.errors.empty());
  EXPECT_EQ(open.deck.parallel.dense.data, 0);
  EXPECT_EQ(open.deck.batch.micro_batches, 0);
  // Unless the batch settles it.
  const ReadResult settled = read_small({"batch={global: 24, micro: 4, micro_batches: 2}"}, std::nullopt);
  EXPECT_TRUE(settled.errors.empty());
  EXPECT_EQ(settled.deck.parallel.dense.data, 3);
}

TEST(Read, EmbeddingAndMlpNeedOtherKeys) {
  const ReadResult embedding = read_deck(
      "model: {kind: embedding, vocab: 5, hidden: 4}\ndata: {kind: synthetic, samples: 8}\n", "e.yaml", {}, 1);
  EXPECT_TRUE(embedding.errors.empty()) << numbered_list(embedding.errors);
  EXPECT_EQ(embedding.deck.model.sequence, 1);
  const ReadResult residual = read_deck(
      "model: {kind: residual, layers: 3, hidden: 4}\ndata: {kind: synthetic, samples: 8}\n", "r.yaml", {}, 1);
  EXPECT_TRUE(residual.errors.empty()) << numbered_list(residual.errors);
  EXPECT_EQ(residual.deck.model.ffn.hidden, 16);
  const ReadResult mlp =
      read_deck("model: {kind: mlp, widths: [4, 3]}\ndata: {kind: synthetic, samples: 8}\n", "m.yaml", {}, 1);
  EXPECT_TRUE(mlp.errors.empty()) << numbered_list(mlp.errors);
}

TEST(Read, SixFaultsOfSpellingAtOnce) {
  const ReadResult result = read_deck(
      "run:\n"
      "  steps: 10\n"
      "\tname: bad\n"
      "optimzer: {kind: sgd}\n"
      "model: {layers: 2, hidden: 32, heads: 4, vocab: 257, sequence: 16, tie_embeddings: yes, clip: 1.0}\n"
      "data: {train: [corpus.txt]}\n"
      "optimizer:\n"
      "  lr: \"1e-3 \"\n"
      "  lr: 2.0e-3\n",
      "six.yaml");
  const std::vector<std::tuple<int, int, std::string>> expected = {{3, 1, ""},
                                                                   {4, 1, "optimzer"},
                                                                   {5, 68, "model.tie_embeddings"},
                                                                   {5, 89, "model.clip"},
                                                                   {8, 3, "optimizer.lr"},
                                                                   {9, 3, "optimizer.lr"}};
  ASSERT_EQ(result.errors.size(), expected.size()) << numbered_list(result.errors);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(std::make_tuple(result.errors[i].line, result.errors[i].column, result.errors[i].path), expected[i]);
    EXPECT_EQ(result.errors[i].file, "six.yaml");
  }
}

TEST(Read, FiveFaultsOfAGridAtOnce) {
  const ReadResult result = read_deck(
      "model: {layers: 4, hidden: 96, heads: 6, kv_heads: 3, vocab: 257, sequence: 64, moe: {experts: 6}}\n"
      "data: {train: [corpus.txt]}\n"
      "batch: {global: 64, micro: 3}\n"
      "parallel: {stages: 2, dense: {row: 4}, moe: {expert: 8}}\n",
      "five.yaml", {}, 12);
  std::vector<std::string> paths;
  for (const DeckError& error : result.errors) paths.push_back(error.path);
  EXPECT_EQ(paths, (std::vector<std::string>{"model.kv_heads", "batch.micro", "parallel", "parallel.dense.row",
                                             "parallel.moe.expert"}))
      << numbered_list(result.errors);
}

TEST(Read, OneMistakeMakesOneMessage) {
  // Rules that need a key with a fault of its own are left out.
  EXPECT_EQ(read_small({"model.heads=x"}).errors.size(), 1u);
  EXPECT_EQ(read_small({"model.hidden=0"}).errors.size(), 1u);
  EXPECT_EQ(read_small({"model.kind=transfomer"}).errors.size(), 1u);
  EXPECT_EQ(read_small({"parallel.dense.row=x"}, 7).errors.size(), 1u);
  EXPECT_EQ(read_deck("model: {kind: transfomer}\n", "k.yaml").errors.size(), 2u);  // and data.train
}

TEST(Read, TextsThatAreNoDeck) {
  for (const std::string text : {"", "# nothing\n", "- a\n- b\n", "word\n", "{", "a: [1\n", "a: \"b\n", "a: *b\n",
                                 "---\n---\n", "a: &x [*x]\n", "? [a]\n: 1\n", "\t", "run: {? [a] : 1}\n"}) {
    EXPECT_FALSE(read_deck(text, "no.yaml").errors.empty()) << text;
  }
}

TEST(Read, TabsAreNamedAndTheRestIsStillRead) {
  const std::string text =
      "run:\n\tname: a\n\tsteps: 3\nmodel:\n\tffn:\n\t\tkind: gleu\ndata: {kind: synthetic, samples: 4}\n";
  const ReadResult result = read_deck(text, "tab.yaml");
  std::vector<int> tabs;
  bool kind = false;
  for (const DeckError& error : result.errors) {
    if (error.message.find("tab in the indentation") == 0) tabs.push_back(error.line);
    if (error.path == "model.ffn.kind") {
      kind = true;
      EXPECT_EQ(error.line, 6);
      EXPECT_EQ(error.column, 3);
    }
  }
  EXPECT_EQ(tabs, (std::vector<int>{2, 3, 5, 6})) << numbered_list(result.errors);
  EXPECT_TRUE(kind) << numbered_list(result.errors);
}

TEST(Read, WindowsLinesAndByteOrderMark) {
  std::string text = "\xef\xbb\xbf";
  for (const char c : kSmallDeck) text += c == '\n' ? std::string("\r\n") : std::string(1, c);
  const ReadResult result = read_deck(text, "dos.yaml", {}, 1);
  EXPECT_TRUE(result.errors.empty()) << numbered_list(result.errors);
  EXPECT_EQ(result.deck.data.train, std::vector<std::string>{"corpus.txt"});
}

TEST(Read, DamagedTextsNeverThrow) {
  std::mt19937_64 engine(seed());
  const std::string bytes = " \t\n:{}[],\"'#-*&!?|>%@`\\0123456789.eE+~aeiourst\x01\xff";
  const auto lines = std::count(kExample.begin(), kExample.end(), '\n');
  int refused = 0;
  const int texts = full() ? 20000 : 1500;
  for (int i = 0; i < texts; ++i) {
    std::string text = kExample;
    for (std::uint64_t edits = 1 + engine() % 3; edits > 0; --edits) {
      const std::size_t place = engine() % text.size();
      const char byte = bytes[engine() % bytes.size()];
      if (engine() % 3 == 0)
        text.erase(place, 1 + engine() % 8);
      else if (engine() % 2 == 0)
        text.insert(place, 1, byte);
      else
        text[place] = byte;
    }
    const ReadResult result = read_deck(text, "damaged.yaml", {}, 2);
    refused += result.errors.empty() ? 0 : 1;
    for (const DeckError& error : result.errors) {
      EXPECT_GE(error.line, 1) << error.text();
      EXPECT_LE(error.line, lines + 4) << error.text();
      EXPECT_GE(error.column, 1) << error.text();
    }
  }
  EXPECT_GT(refused, texts / 2);
}

}  // namespace fourfold::test
