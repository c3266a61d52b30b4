// Samples of several documents, which are kept apart (data.reset_attention, data.reset_positions): the losses and
// gradients of the documents alone, one after the other in a serial model, on every grid.
#include <gtest/gtest.h>

#include "comm/launch.hpp"
#include "mpi_test.hpp"
#include "runs.hpp"
#include "test_support.hpp"

namespace fourfold {
namespace {

using test::Tensors;

constexpr std::int32_t kEnd = 2;  // of a vocabulary of 7: documents of seven tokens on average

std::string documents_deck() {
  return R"(
run: {name: documents, steps: 1, seed: 5}
model: {kind: transformer, layers: 2, hidden: 16, heads: 4, kv_heads: 2, head_dim: 4, vocab: 7, sequence: 32,
        norm: rms, ffn: {kind: swiglu, hidden: 24}, init: {std: 0.2}}
data: {kind: synthetic, synthetic: dyadic, samples: 50, valid_samples: 5, end_of_document: 2, mask_document_ends: true,
       reset_attention: true, reset_positions: true}
batch: {global: 16, micro_batches: 2}
optimizer: {kind: sgd, lr: 1.0e-2}
precision: {compute: fp64}
numerics: {deterministic: true}
)";
}

struct Alone {
  double loss = 0;
  Tensors gradients;
  std::int64_t documents = 0;
};

// Each document of the step as a sequence of its own.
Alone documents_alone(const Deck& deck, const Communicator& alone) {
  const Loader loader(deck);
  const GridComms comms(test::grid_comms(deck, alone));
  MemoryLedger ledger;
  Pool pool(ledger);
  Model<double> model(deck, comms, pool);
  const auto targets = static_cast<double>(loader.targets_in_step(0, 1, 0));
  Alone result;
  for (std::int64_t m = 0; m < deck.batch.micro_batches; ++m) {
    const Batch batch = loader.micro_batch(0, m, 1, 0);
    for (std::int64_t row = 0; row < batch.rows();) {
      std::int64_t end = row + 1;
      while (end % batch.tokens != 0 && batch.ids[static_cast<std::size_t>(end) - 1] != kEnd) ++end;
      MicroBatch<double> document;
      document.sequences = document.all_sequences = 1;
      document.tokens = end - row;
      document.ids = Tensor<std::int32_t>(pool, MemoryTag::buffers, document.tokens, 1);
      document.targets = Tensor<std::int32_t>(pool, MemoryTag::buffers, document.tokens, 1);
      std::copy(batch.ids.begin() + row, batch.ids.begin() + end, document.ids.data());
      std::copy(batch.targets.begin() + row, batch.targets.begin() + end, document.targets.data());
      Pass<double> pass;
      pass.batch = &document;
      pass.training = true;
      pass.loss_scale = 1 / targets;
      Activations<double> kept;
      result.loss += model.forward(pass, kept).loss / targets;
      model.backward(pass, kept);
      ++result.documents;
      row = end;
    }
  }
  for (const Param<double>& param : model.params().params()) {
    result.gradients[param.spec.name].assign(param.grad.data(), param.grad.data() + param.grad.extent(0));
  }
  return result;
}

struct Case {
  int ranks;
  std::vector<std::string> grid;
};

std::vector<Case> cases() {
  const std::string learned = "model.positions=learned", shard = "parallel.sequence_shard=true";
  const std::string split = "attention.split=col", by_token = "parallel.depth_splits=sequence";
  return {
      {1, {}},
      {1, {learned}},
      {2, {"parallel.dense={row: 2}"}},
      {4, {"parallel.dense={row: 2, col: 2}", split}},
      {4, {"parallel.dense={row: 1, col: 4}", split, learned}},
      {2, {"parallel.dense={depth: 2}", by_token}},
      {8, {"parallel.dense={depth: 2, row: 2, col: 2}", by_token, shard, split, learned}},
      {6, {"parallel.dense={depth: 3, col: 2}", by_token, split}},
      {4, {"parallel.dense={row: 4}", shard, learned}},
      {8, {"parallel.dense={data: 2, depth: 2, row: 1, col: 2}"}},
      {3, {"parallel.stages=3", learned}},
      {8, {"parallel.stages=2", "parallel.dense={depth: 2, row: 2}", by_token, shard}},
      {2, {"parallel.activations.sublayers=[attention]", "parallel.dense={row: 2}"}},
  };
}

TEST(Documents, PackedSamplesEqualDocumentsAlone) {
  for (const Case& tested : test::sample(cases(), 8)) {
    test::on_ranks(tested.ranks, [&](const Communicator& ranks) {
      std::string name;
      std::vector<std::string> model;
      for (const std::string& word : tested.grid) {
        name += word + " ";
        if (word.starts_with("model.")) model.push_back(word);
      }
      const Communicator one(ranks, {ranks.rank()}, "alone");
      const Alone alone = documents_alone(test::deck_of(documents_deck(), model, 1), one);
      EXPECT_GT(alone.documents, 30);
      test::Shards shards;
      const Deck deck = test::deck_of(documents_deck(), tested.grid, ranks.size());
      const std::vector<test::StepRecord> packed = test::run_steps(deck, ranks, 1, &shards);
      EXPECT_NEAR(packed[0].loss, alone.loss, 1e-12) << name;
      EXPECT_LT(test::difference(test::held_part(alone.gradients, shards), packed[0].gradients), 1e-11) << name;
      // And that there is something to keep apart.
      Deck together = deck;
      together.data.reset_attention = together.data.reset_positions = false;
      EXPECT_GT(std::abs(test::run_steps(together, ranks, 1)[0].loss - alone.loss), 1e-4) << name;
    });
  }
}

}  // namespace
}  // namespace fourfold
