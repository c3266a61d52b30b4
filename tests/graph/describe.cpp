// Counts of parameters, FLOPs and bytes against published models and worked examples.
#include "model/describe.hpp"

#include <gtest/gtest.h>

#include <set>

namespace fourfold::test {

ModelDeck transformer(std::int64_t layers, std::int64_t hidden, std::int64_t heads, std::int64_t kv_heads,
                      std::int64_t ffn, std::int64_t vocab, std::int64_t sequence) {
  ModelDeck model;
  model.layers = layers;
  model.hidden = hidden;
  model.heads = heads;
  model.kv_heads = kv_heads;
  model.head_dim = hidden / heads;
  model.ffn = {FeedForwardKind::swiglu, ffn};
  model.vocab = vocab;
  model.sequence = sequence;
  return model;
}

MoeDeck experts(std::int64_t every, std::int64_t count, std::int64_t top_k, std::int64_t hidden) {
  MoeDeck moe;
  moe.every = every;
  moe.experts = count;
  moe.top_k = top_k;
  moe.hidden = hidden;
  return moe;
}

ModelDeck gpt2() {
  ModelDeck model = transformer(12, 768, 12, 12, 3072, 50257, 1024);
  model.ffn.kind = FeedForwardKind::gelu_tanh;
  model.positions = Positions::learned;
  model.norm = NormKind::layer;
  model.bias = BiasKind::all;
  model.tie_embeddings = true;
  return model;
}

TEST(Describe, PublishedParameterCounts) {
  EXPECT_EQ(describe(gpt2()).parameters(), 124'439'808);                                               // GPT-2 small
  EXPECT_EQ(describe(transformer(32, 4096, 32, 32, 11008, 32000, 4096)).parameters(), 6'738'415'616);  // Llama 2 7B
  ModelDeck mixtral = transformer(32, 4096, 32, 8, 14336, 32000, 32768);
  mixtral.moe = experts(1, 8, 2, 14336);
  EXPECT_EQ(describe(mixtral).parameters(), 46'702'792'704);  // Mixtral 8x7B
  ModelDeck qwen = transformer(24, 896, 14, 2, 4864, 151936, 32768);
  qwen.bias = BiasKind::qkv;
  qwen.tie_embeddings = true;
  EXPECT_EQ(describe(qwen).parameters(), 494'032'768);  // Qwen2 0.5B
}

TEST(Describe, P64ActiveExpertsAndGroupedHeads) {
  ModelDeck model = transformer(2, 64, 4, 2, 128, 1000, 128);
  model.moe = experts(1, 8, 2, 128);
  model.tie_embeddings = true;
  const Graph graph = describe(model);
  std::int64_t attention_layers = 0;
  for (const LayerCost& layer : graph.layers) {
    if (layer.kind != LayerKind::attention) continue;
    ++attention_layers;
    EXPECT_EQ(layer.matrix_parameters, 12'288);
  }
  EXPECT_EQ(attention_layers, 2);
  EXPECT_EQ(graph.sum(&LayerCost::matrix_parameters) + graph.sum(&LayerCost::expert_parameters), 482'816);
  EXPECT_EQ(graph.sum(&LayerCost::product_elements), 187'904);
  EXPECT_EQ(6 * graph.sum(&LayerCost::product_elements), 1'127'424);
  EXPECT_EQ(graph.training_flops(), 1'225'728);                                               // causal
  EXPECT_EQ(graph.training_flops() + 3 * graph.sum(&LayerCost::attention_flops), 1'324'032);  // the whole square
  EXPECT_EQ(graph.training_flops(), 3 * graph.forward_flops());
}

TEST(Describe, ExpertsInEverySecondBlock) {
  ModelDeck model = transformer(4, 64, 4, 4, 128, 300, 32);
  model.moe = experts(2, 8, 2, 128);
  std::set<std::string> named;
  for (const LayerCost& layer : describe(model).layers) {
    if (layer.kind == LayerKind::experts) named.insert(layer.name);
  }
  EXPECT_EQ(named, (std::set<std::string>{"layers.1.moe", "layers.3.moe"}));
}

TEST(Describe, Mlp) {
  ModelDeck model;
  model.kind = ModelKind::mlp;
  model.widths = {3, 5, 2};
  const Graph graph = describe(model);
  EXPECT_EQ(graph.parameters(), 15 + 5 + 10 + 2);
  EXPECT_EQ(graph.training_flops(), 6 * 25);
  EXPECT_EQ(graph.tokens_per_sample, 1);
  model.mlp_bias = false;
  EXPECT_EQ(describe(model).parameters(), 25);
}

TEST(Describe, Embedding) {
  ModelDeck model;
  model.kind = ModelKind::embedding;
  model.vocab = 7;
  model.hidden = 4;
  model.sequence = 3;
  EXPECT_EQ(describe(model).parameters(), 56);
  EXPECT_EQ(describe(model).training_flops(), 6 * 28);
  model.tie_embeddings = true;
  EXPECT_EQ(describe(model).parameters(), 28);
  EXPECT_EQ(describe(model).training_flops(), 6 * 28);
}

Deck gpt2_deck(int data) {
  Deck deck;
  deck.model = gpt2();
  deck.parallel.dense.data = data;
  deck.parallel.moe = MoeShape{data, 1, 1, 1};
  deck.batch = {4 * data, 4, 1};
  return deck;
}

TEST(Memory, ExactForDataParallel) {
  const std::int64_t p = 124'439'808;
  for (const int data : {1, 2, 8}) {
    Deck deck = gpt2_deck(data);
    const Graph graph = describe(deck.model);
    MemoryPerRank memory = memory_per_rank(deck);
    EXPECT_EQ(memory.parameters, 4 * p);
    EXPECT_EQ(memory.gradients, 4 * p);
    EXPECT_EQ(memory.optimizer, 8 * p);
    EXPECT_EQ(checkpoint_bytes(deck, graph), 12 * p);
    deck.precision = Precision::fp64;
    deck.optimizer.kind = OptimizerKind::momentum;
    memory = memory_per_rank(deck);
    EXPECT_EQ(memory.parameters, 8 * p);
    EXPECT_EQ(memory.optimizer, 8 * p);
    EXPECT_EQ(checkpoint_bytes(deck, graph), 16 * p);
    deck.optimizer.kind = OptimizerKind::sgd;
    EXPECT_EQ(memory_per_rank(deck).optimizer, 0);
    deck.precision = Precision::bf16;
    deck.optimizer.kind = OptimizerKind::adamw;
    memory = memory_per_rank(deck);
    EXPECT_EQ(memory.parameters, 2 * p);
    EXPECT_EQ(memory.gradients, 4 * p);
    EXPECT_EQ(memory.optimizer, 12 * p);  // two moments and the masters
  }
}

TEST(Memory, ActivationsByHand) {
  // One block, D = 8, 2 heads of 4, 1 KV head, F = 12 swiglu, V = 10, T = 5, 3 sequences, fp32.
  Deck deck = gpt2_deck(1);
  deck.model = transformer(1, 8, 2, 1, 12, 10, 5);
  deck.batch = {3, 3, 1};
  // norm 8 + 1; attention 8 + (q 8, kv 8, out 8) + lse 2; norm 8 + 1; ffn 8 + 24 + 12; norm 8 + 1; head 8 + 10 + 2
  const std::int64_t elements = 9 + 34 + 9 + 44 + 9 + 20;
  EXPECT_EQ(memory_per_rank(deck).activations, 3 * 5 * elements * 4);
}

// Matrices of the dense layers, of the experts, and vectors, each by its own grid.
TEST(Memory, ThreeClassesEachWithItsDivisor) {
  Deck deck = gpt2_deck(2);
  deck.model.moe = experts(1, 8, 2, 3072);
  deck.parallel.dense = {1, 1, 2, 2};
  deck.parallel.moe = MoeShape{1, 4, 1, 1};
  const Graph graph = describe(deck.model);
  const std::int64_t width = 768, sequence = 1024, layers = 12, inner = 3072;
  const std::int64_t in_experts = layers * 8 * (2 * width * inner + inner + width);
  EXPECT_EQ(graph.sum(&LayerCost::expert_parameters), in_experts);
  // Vocabulary 50257 over two rows: 25129; positions and norms over col only; biases of q, k, v over row, of the output
  // over col; the router whole.
  const std::int64_t matrices = 25129 * (width / 2) + layers * (width * width + 8 * width);
  const std::int64_t vectors = sequence * width / 2 + layers * (4 * width / 2 + 3 * width / 2 + width / 2) + width;
  EXPECT_EQ(memory_per_rank(deck).parameters, 4 * (matrices + in_experts / 4 + vectors));
}

// Matrices and vectors are groups of their own, each padded to whole parts.
TEST(Memory, ShardedUpdate) {
  Deck deck = gpt2_deck(5);
  const Graph graph = describe(deck.model);
  const std::int64_t vectors =
      graph.sum(&LayerCost::vector_parameters) + 1024 * 768;  // positions are in the norms' group
  const std::int64_t matrices = graph.parameters() - vectors;
  const auto part = [](std::int64_t n, std::int64_t parts) { return (n + parts - 1) / parts; };
  deck.optimizer.shard.kind = UpdateShard::Kind::data;
  EXPECT_EQ(memory_per_rank(deck).optimizer, 8 * (part(matrices, 5) + part(vectors, 5)));
  EXPECT_EQ(memory_per_rank(deck).parameters, 4 * 5 * (part(matrices, 5) + part(vectors, 5)));
  deck.parallel.dense.data = 6;
  deck.optimizer.shard = {UpdateShard::Kind::data_partial, 3};
  EXPECT_EQ(memory_per_rank(deck).optimizer, 8 * (part(matrices, 3) + part(vectors, 3)));
  deck.optimizer.kind = OptimizerKind::lars;
  EXPECT_EQ(memory_per_rank(deck).optimizer, 4 * (part(matrices, 3) + part(vectors, 3)));
}

// What the layers say they keep is what a lone rank keeps.
TEST(Memory, LayersAddUpOnOneRank) {
  for (const NormKind norm : {NormKind::layer, NormKind::rms}) {
    for (const FeedForwardKind ffn : {FeedForwardKind::gelu, FeedForwardKind::swiglu}) {
      Deck deck = gpt2_deck(1);
      deck.model = transformer(3, 24, 6, 2, 20, 31, 7);
      deck.model.norm = norm;
      deck.model.ffn.kind = ffn;
      deck.batch = {3, 3, 1};
      const Graph graph = describe(deck.model);
      const std::int64_t values = graph.sum(&LayerCost::kept_stream) + graph.sum(&LayerCost::kept_features);
      const std::int64_t statistics =
          graph.sum(&LayerCost::kept_statistics) + graph.sum(&LayerCost::kept_head_statistics);
      EXPECT_EQ(memory_per_rank(deck).activations, 3 * 7 * 4 * (values + statistics));
    }
  }
}

}  // namespace fourfold::test
