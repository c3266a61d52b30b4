// The first contribution of a step overwrites what a gradient held: whatever that was, a run is the same to the bit.
// NaN in every gradient between steps goes through any path that would add to it, or leave it for the update.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "comm/launch.hpp"
#include "grid/process_grid.hpp"
#include "kernels/vector.hpp"
#include "model/precision.hpp"
#include "mpi_test.hpp"
#include "runs.hpp"
#include "test_support.hpp"
#include "train/evaluate.hpp"

namespace fourfold {
namespace {

constexpr int kSteps = 3;

// What three steps leave, as bytes: losses, norms, weights, moments, masters.
template <class T>
std::vector<char> bytes_left(const Deck& deck, bool spoil) {
  test::Training<T> run(deck, test::launch().world());
  std::vector<char> bytes;
  const auto append = [&](const void* data, std::size_t size) {
    const auto* first = static_cast<const char*>(data);
    bytes.insert(bytes.end(), first, first + size);
  };
  for (int step = 0; step < kSteps; ++step) {
    if (spoil) {
      const auto nan = std::numeric_limits<kernels::Acc<T>>::quiet_NaN();
      for (const Param<T>& param : run.params().params()) kernels::fill<kernels::Acc<T>>(Space(), nan, param.grad);
      evaluate(run.trainer.model(), run.trainer.pipeline(), run.loader, run.comms, run.pool, {});
    }
    const StepReport report = run.trainer.step();
    append(&report.loss, sizeof(report.loss));
    append(&report.grad_norm, sizeof(report.grad_norm));
  }
  for (const checkpoint::NamedShard& shard : run.shards()) {
    append(shard.data, static_cast<std::size_t>(shard.shard.size() * h5::element_bytes(shard.type)));
  }
  return bytes;
}

struct Case {
  const char* model;
  DenseShape grid;
  std::vector<std::string> how;
};

// Tables with two uses, with rows that no token asks for and that no rank holds; sums over depth that end after later
// layers' products; ranks without rows, features, heads' sequences; KV heads that neighbours share.
const std::vector<Case>& cases() {
  static const char* const kDecoder =
      "{kind: transformer, layers: 2, hidden: 13, heads: 8, kv_heads: 2, head_dim: 2, vocab: 29, sequence: 5, "
      "positions: learned, norm: layer, bias: all, ffn: {kind: gelu, hidden: 3}, tie_embeddings: true, dropout: 0.1}";
  static const char* const kOneToken =
      "{kind: transformer, layers: 1, hidden: 3, heads: 8, head_dim: 2, vocab: 3, sequence: 1, positions: rope, "
      "norm: rms, bias: qkv, ffn: {kind: swiglu, hidden: 5}}";
  static const char* const kNet = "{kind: mlp, widths: [3, 5, 2], loss: squared_error}";
  static const char* const kTable = "{kind: embedding, vocab: 3, hidden: 2, sequence: 2, tie_embeddings: true}";
  static const std::vector<Case> list = {
      {kDecoder, {8, 1, 1, 1}, {"optimizer.shard=data", "optimizer.gather=lazy"}},
      {kDecoder, {1, 8, 1, 1}, {"parallel.depth_splits=sequence"}},
      {kDecoder, {1, 2, 4, 1}, {"parallel.sequence_shard=true", "parallel.depth_splits=sequence"}},
      {kDecoder, {2, 2, 1, 2}, {"attention.split=col", "parallel.overlap=false"}},
      {kDecoder, {2, 2, 2, 1}, {"batch.micro_batches=2", "optimizer.kind=lamb"}},
      {kDecoder, {4, 1, 2, 1}, {"optimizer.shard={data_partial: 2}", "comm.bucket_bytes=64"}},
      {kOneToken, {1, 1, 8, 1}, {"parallel.sequence_shard=true"}},
      {kOneToken, {1, 1, 1, 8}, {"attention.split=col", "batch.micro_batches=2"}},
      {kOneToken, {1, 2, 4, 1}, {"parallel.depth_splits=sequence", "optimizer.kind=lars"}},
      {kNet, {1, 2, 2, 2}, {"optimizer.kind=sgd"}},
      {kNet, {1, 1, 8, 1}, {"batch.micro_batches=2"}},
      {kNet, {1, 8, 1, 1}, {}},
      {kTable, {1, 1, 8, 1}, {}},
      {kTable, {2, 2, 2, 1}, {"parallel.sequence_shard=true", "batch.micro_batches=2"}},
  };
  return list;
}

TEST(OldGradients, AreNeverRead) {
  const auto digits = [](int value) { return std::to_string(value); };
  for (const Case& c : test::sample(cases(), 4)) {
    for (const char* precision : {"bf16", "fp64"}) {
      SCOPED_TRACE(std::string(c.model) + " " + (c.how.empty() ? "" : c.how.front()) + " " + precision);
      std::vector<std::string> keys = c.how;
      keys.insert(keys.end(),
                  {"precision.compute=" + std::string(precision), "parallel.dense.data=" + digits(c.grid.data),
                   "parallel.dense.depth=" + digits(c.grid.depth), "parallel.dense.row=" + digits(c.grid.row),
                   "parallel.dense.col=" + digits(c.grid.col)});
      const std::string yaml = std::string("run: {name: old, steps: 3}\nmodel: ") + c.model +
                               "\ndata: {kind: synthetic, samples: 50, valid_samples: 9}\n"
                               "batch: {global: 16}\nnumerics: {deterministic: true}\n";
      const Deck deck = test::deck_of(yaml, keys, test::launch().world().size());
      in_precision(deck.precision, [&]<class T>() {
        const std::vector<char> clean = bytes_left<T>(deck, false);
        EXPECT_TRUE(clean == bytes_left<T>(deck, true));
      });
    }
  }
}

}  // namespace
}  // namespace fourfold
