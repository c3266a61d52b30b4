// Small decks of every kind of model, and a model with a random micro-batch on the ranks of a grid.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "comm/grid_comms.hpp"
#include "comm/launch.hpp"
#include "model/model.hpp"
#include "mpi_test.hpp"

namespace fourfold::test {

inline Deck transformer_deck() {
  Deck deck;
  ModelDeck& m = deck.model;
  m.kind = ModelKind::transformer;
  m.layers = 2;
  m.hidden = 12;
  m.heads = 4;
  m.kv_heads = 2;
  m.head_dim = 6;  // not hidden / heads
  m.vocab = 19;
  m.sequence = 7;
  m.ffn = {FeedForwardKind::swiglu, 10};
  m.init.std = 0.3;
  deck.precision = Precision::fp64;
  deck.run.seed = 7;
  return deck;
}

struct NamedDeck {
  std::string name;
  Deck deck;
};

// Every choice of the model at least once.
inline std::vector<NamedDeck> model_decks() {
  std::vector<NamedDeck> decks;
  decks.push_back({"llama", transformer_deck()});
  Deck gpt2 = transformer_deck();
  gpt2.model.norm = NormKind::layer;
  gpt2.model.positions = Positions::learned;
  gpt2.model.ffn = {FeedForwardKind::gelu, 20};
  gpt2.model.bias = BiasKind::all;
  gpt2.model.kv_heads = 4;
  gpt2.model.tie_embeddings = true;
  decks.push_back({"gpt2", gpt2});
  Deck qwen = transformer_deck();
  qwen.model.bias = BiasKind::qkv;
  qwen.model.kv_heads = 1;
  qwen.model.dropout = 0.2;
  qwen.model.ffn = {FeedForwardKind::gelu_tanh, 9};
  decks.push_back({"qkv bias, one KV head, dropout", qwen});
  Deck plain = transformer_deck();
  plain.model.positions = Positions::none;
  plain.model.norm = NormKind::layer;
  plain.model.ffn = {FeedForwardKind::relu, 11};
  decks.push_back({"no positions, relu", plain});
  Deck mlp;
  mlp.precision = Precision::fp64;
  mlp.model.kind = ModelKind::mlp;
  mlp.model.widths = {5, 9, 7, 3};
  mlp.model.activation = Activation::gelu;
  mlp.model.loss = LossKind::squared_error;
  mlp.model.init.std = 0.5;
  decks.push_back({"mlp regression", mlp});
  mlp.model.loss = LossKind::cross_entropy;
  mlp.model.activation = Activation::gelu_tanh;
  mlp.model.mlp_bias = false;
  decks.push_back({"mlp classification", mlp});
  Deck embedding;
  embedding.precision = Precision::fp64;
  embedding.model.kind = ModelKind::embedding;
  embedding.model.vocab = 11;
  embedding.model.hidden = 6;
  embedding.model.sequence = 7;
  embedding.model.init.std = 0.5;
  embedding.model.loss = LossKind::squared_error;
  decks.push_back({"embedding, untied, squared error", embedding});
  embedding.model.tie_embeddings = true;
  decks.push_back({"embedding, tied, squared error", embedding});
  embedding.model.loss = LossKind::cross_entropy;
  decks.push_back({"embedding, tied, cross entropy", embedding});
  return decks;
}

// A model on one grid with its memory; everything that must die before Kokkos.
template <class T>
struct SmallModel {
  explicit SmallModel(const Deck& deck) : SmallModel(deck, ProcessGrid({StageShape{}}), launch().world()) {}
  SmallModel(const Deck& deck, const ProcessGrid& grid, const Communicator& world)
      : pool(ledger),
        comms(world, grid, dense_axis_sets(kv_sharers(deck.model, grid.stage(0).dense.row))),
        model(deck, comms, pool) {}

  MicroBatch<T> random_batch(Index sequences, std::uint64_t seed, bool holes = true) {
    const ModelDeck& m = model.deck().model;
    std::mt19937_64 engine(seed);
    MicroBatch<T> batch;
    batch.sequences = sequences;
    if (m.kind == ModelKind::mlp) {
      batch.inputs = Tensor<T>(pool, MemoryTag::buffers, sequences, m.widths.front());
      batch.values = Tensor<T>(pool, MemoryTag::buffers, sequences, m.widths.back());
      batch.targets = Tensor<std::int32_t>(pool, MemoryTag::buffers, sequences, 1);
      std::normal_distribution<double> normal;
      for (Index i = 0; i < batch.inputs.size(); ++i) batch.inputs.data()[i] = static_cast<T>(normal(engine));
      for (Index i = 0; i < batch.values.size(); ++i) batch.values.data()[i] = static_cast<T>(normal(engine));
      for (Index i = 0; i < sequences; ++i) {
        batch.targets.data()[i] = static_cast<std::int32_t>(engine() % static_cast<std::uint64_t>(m.widths.back()));
      }
      return batch;
    }
    batch.tokens = m.sequence;
    batch.ids = Tensor<std::int32_t>(pool, MemoryTag::buffers, batch.rows(), 1);
    batch.targets = Tensor<std::int32_t>(pool, MemoryTag::buffers, batch.rows(), 1);
    for (Index i = 0; i < batch.rows(); ++i) {
      batch.ids.data()[i] = static_cast<std::int32_t>(engine() % static_cast<std::uint64_t>(m.vocab));
      batch.targets.data()[i] = static_cast<std::int32_t>(engine() % static_cast<std::uint64_t>(m.vocab));
      if (holes && i % 5 == 3) batch.targets.data()[i] = -1;
    }
    return batch;
  }

  MemoryLedger ledger;
  Pool pool;
  GridComms comms;
  Model<T> model;
};

}  // namespace fourfold::test
