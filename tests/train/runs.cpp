#include "runs.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "comm/collectives.hpp"
#include "comm/launch.hpp"
#include "deck/reader.hpp"
#include "model/precision.hpp"
#include "mpi_test.hpp"
#include "tensor/number.hpp"
#include "train/pipeline.hpp"

namespace fourfold::test {

namespace {

template <class V>
std::vector<double> host_copy(V view) {
  const auto host = Kokkos::create_mirror_view(view);
  Kokkos::deep_copy(host, view);
  return std::vector<double>(host.data(), host.data() + host.extent(0));
}

// A sharded update leaves each rank its part of the sums.
template <class T>
void gather_gradients(Trainer<T>& trainer) {
  ParamStore<T>& store = trainer.model().params();
  for (std::size_t g = 0; g < store.groups().size(); ++g) {
    if (!trainer.plan().group(g).sharded) continue;
    const auto& grads = store.groups()[g].grads;
    start_gather_parts<kernels::Acc<T>>(trainer.plan().group(g), wire(grads.vector()), Phase::control).wait();
  }
}

}  // namespace

Deck deck_of(const std::string& yaml, const std::vector<std::string>& overrides, int ranks) {
  const ReadResult result = read_deck(yaml, "test.yaml", overrides, ranks);
  if (!result.errors.empty()) fail_all(ExitCode::input, numbered_list(result.errors));
  return result.deck;
}

std::string small_transformer() {
  return R"(
run: {name: small, steps: 20, seed: 5}
model: {kind: transformer, layers: 2, hidden: 16, heads: 4, kv_heads: 2, head_dim: 4, vocab: 31, sequence: 8,
        positions: rope, norm: rms, ffn: {kind: swiglu, hidden: 24}, dropout: 0.1, init: {std: 0.2}}
data: {kind: synthetic, synthetic: dyadic, samples: 500, valid_samples: 29}
batch: {global: 48, micro_batches: 1}
optimizer: {kind: adamw, lr: 1.0e-2, weight_decay: 0.1, clip: 0.5, schedule: {kind: cosine, warmup: 3, final: 1.0e-3}}
precision: {compute: fp64}
numerics: {deterministic: true}
)";
}

std::string dyadic_mlp() {
  return R"(
run: {name: dyadic, steps: 12, seed: 3}
model: {kind: mlp, widths: [12, 20, 16, 6], activation: relu, loss: squared_error, init: {kind: dyadic}}
data: {kind: synthetic, synthetic: dyadic, samples: 96}
batch: {global: 48, micro_batches: 1}
optimizer: {kind: momentum, lr: 0.5, clip: 1.0}
precision: {compute: fp64}
numerics: {snap: 8}
)";
}

std::string dyadic_embedding(bool tied) {
  return std::string(R"(
run: {name: dyadic, steps: 12, seed: 3}
model: {kind: embedding, vocab: 14, hidden: 10, loss: squared_error, init: {kind: dyadic}, tie_embeddings: )") +
         (tied ? "true" : "false") + R"(}
data: {kind: synthetic, synthetic: dyadic, samples: 96}
batch: {global: 48, micro_batches: 1}
optimizer: {kind: momentum, lr: 0.5, clip: 1.0}
precision: {compute: fp64}
numerics: {snap: 8}
)";
}

GridComms grid_comms(const Deck& deck, const Communicator& world) {
  const ProcessGrid grid = process_grid(deck);
  return GridComms(world, grid, rank_groups(deck, plan_pipeline(deck), grid.coordinates(world.rank()).stage));
}

Tensors values_of(const std::vector<checkpoint::NamedShard>& shards) {
  Tensors values;
  for (const checkpoint::NamedShard& shard : shards) {
    const auto* data = static_cast<const double*>(shard.data);
    values[shard.name].assign(data, data + shard.shard.size());
  }
  return values;
}

Tensors held_part(const Tensors& whole, const Shards& shards) {
  Tensors part;
  for (const auto& [name, shard] : shards) {
    const std::vector<double>& all = whole.at(name);
    EXPECT_EQ(static_cast<std::int64_t>(all.size()), shard.global_size()) << name;
    std::vector<double>& mine = part[name];
    for (std::int64_t i = 0; i < shard.size(); ++i) {
      mine.push_back(all[static_cast<std::size_t>(shard.global_index(i))]);
    }
  }
  return part;
}

namespace {

template <class T>
std::vector<StepRecord> run_typed(const Deck& deck, const Communicator& world, int steps, Shards* shards) {
  Training<T> run(deck, world);
  if (shards != nullptr) {
    for (const Param<T>& param : run.params().params()) {
      (*shards)[param.spec.name] = param.spec.shard;
    }
  }
  const bool lazy = deck.optimizer.gather == ValueGather::lazy;
  std::vector<StepRecord> records;
  for (int step = 0; step < steps; ++step) {
    const StepReport report = run.trainer.step();
    StepRecord record{report.loss, report.grad_norm, {}, {}};
    gather_gradients(run.trainer);
    for (const Param<T>& param : run.params().params()) {
      record.gradients[param.spec.name] = host_copy(param.grad);
      // To read weights is to wait for them: a lazy gather is left to the next step's forward.
      if (lazy && step + 1 < steps) continue;
      record.weights[param.spec.name] = host_copy(param.use());
    }
    records.push_back(std::move(record));
  }
  return records;
}

}  // namespace

std::vector<StepRecord> run_steps(const Deck& deck, const Communicator& world, int steps, Shards* shards) {
  return in_precision(deck.precision, [&]<class T>() { return run_typed<T>(deck, world, steps, shards); });
}

void on_ranks(int ranks, const std::function<void(const Communicator&)>& body) {
  const Communicator& world = launch().world();
  if (world.rank() < ranks) {
    std::vector<int> members;
    for (int rank = 0; rank < ranks; ++rank) members.push_back(rank);
    const Communicator group(world, members, "ranks" + std::to_string(ranks));
    body(group);
  }
  barrier(world, Phase::control);
}

double difference(const Tensors& a, const Tensors& b) {
  double largest = 0, distance = 0;
  EXPECT_EQ(a.size(), b.size());
  for (const auto& [name, values] : a) {
    const auto other = b.find(name);
    if (other == b.end() || other->second.size() != values.size()) {
      ADD_FAILURE() << name << " is missing or has another size";
      return INFINITY;
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(values[i]));
      distance = std::max(distance, std::abs(values[i] - other->second[i]));
    }
  }
  return largest > 0 ? distance / largest : distance;
}

}  // namespace fourfold::test
