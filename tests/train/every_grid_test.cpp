// Every pair of grids: what one saved, synchronously or not, another reads, weights and moments bit for bit; dense
// layers, mixtures of experts and pipelines, from 8 ranks down to one and from one up to 8. All pairs under --full.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "checkpoint/async.hpp"
#include "checkpoint/checkpoint.hpp"
#include "comm/agree.hpp"
#include "comm/collectives.hpp"
#include "comm/launch.hpp"
#include "mpi_test.hpp"
#include "runs.hpp"
#include "test_support.hpp"
#include "train/restart.hpp"

namespace fourfold {
namespace {

namespace fs = std::filesystem;

const Communicator& world() {
  return test::launch().world();
}

struct Layout {
  int ranks;
  std::string text;  // the deck's overrides, ; between them
};

struct Family {
  std::string name, yaml;
  std::vector<Layout> layouts;
};

// Sizes that do not divide: shards differ from layout to layout, and some are empty.
Family dense() {
  return {"dense",
          R"(
run: {name: dense, steps: 10, seed: 5}
model: {kind: transformer, layers: 4, hidden: 13, heads: 8, kv_heads: 2, head_dim: 2, vocab: 29, sequence: 6,
        positions: rope, norm: rms, ffn: {kind: gelu, hidden: 17}, bias: none, tie_embeddings: true, init: {std: 0.2}}
data: {kind: synthetic, synthetic: dyadic, samples: 100}
batch: {global: 48, micro_batches: 4}
optimizer: {kind: adamw, lr: 1.0e-2, weight_decay: 0.1, clip: 1.0}
precision: {compute: fp64}
)",
          {{1, ""},
           {2, "parallel.dense.data=2; optimizer.shard=data"},
           {2, "parallel.dense.depth=2"},
           {2, "parallel.dense.row=2"},
           {2, "parallel.stages=2"},
           {3, "parallel.dense.data=3; optimizer.shard=data"},
           {3, "parallel.dense.col=3"},
           {4, "parallel.dense.depth=4; optimizer.shard=data"},
           {4, "parallel.dense.row=2; parallel.dense.col=2"},
           {4, "parallel.stages=4"},
           {4, "parallel.stages=2; parallel.schedule=interleaved; parallel.interleave=2; parallel.dense.col=2"},
           {6, "parallel.dense.row=2; parallel.dense.col=3"},
           {6, "parallel.stages=3; parallel.schedule=gpipe; parallel.dense.data=2; optimizer.shard=data"},
           {8, "parallel.dense.data=2; parallel.dense.depth=2; parallel.dense.row=2"},
           {8, "parallel.dense.depth=2; parallel.dense.row=2; parallel.dense.col=2; optimizer.shard=data"},
           {8, "parallel.dense.row=8"},
           {8, "parallel.stages=2; parallel.dense.depth=2; parallel.dense.col=2; optimizer.shard=data"},
           {8, "parallel.stage_grids=[{data: 3, row: 2}, {depth: 2}]; parallel.stages=2"}}};
}

Family mixture() {
  return {"mixture",
          R"(
run: {name: mixture, steps: 10, seed: 9}
model: {kind: transformer, layers: 4, hidden: 13, heads: 8, kv_heads: 2, head_dim: 2, vocab: 29, sequence: 7,
        positions: rope, norm: rms, ffn: {kind: gelu, hidden: 17}, bias: none, init: {std: 0.2},
        moe: {every: 4, experts: 6, top_k: 3, hidden: 11, shared_hidden: 5, shared_gate: true,
              balance: {aux: 0.05, z: 0.01, bias_rate: 0.004}}}
data: {kind: synthetic, synthetic: dyadic, samples: 100}
batch: {global: 48, micro_batches: 2}
optimizer: {kind: adamw, lr: 1.0e-2, weight_decay: 0.1, clip: 1.0}
precision: {compute: fp64}
)",
          {{1, ""},
           {2, "parallel.moe.expert=2"},
           {2, "parallel.dense.row=2; parallel.moe.col=2"},
           {2, "parallel.stages=2"},
           {3, "parallel.moe.expert=3; optimizer.shard=data"},
           {3, "parallel.dense.col=3; parallel.moe.row=3"},
           {4, "parallel.moe.expert=4"},
           {4, "parallel.dense.depth=2; parallel.moe.replica=2; parallel.moe.expert=2; optimizer.shard=data"},
           {4, "parallel.dense.row=2; parallel.dense.col=2; parallel.moe.expert=4"},
           {4, "parallel.stages=2; parallel.moe.expert=2"},
           {4, "parallel.stages=4"},
           {6, "parallel.moe.expert=6"},
           {8, "parallel.moe.replica=4; parallel.moe.expert=2; optimizer.shard=data"},
           {8,
            "parallel.dense.data=2; parallel.dense.depth=2; parallel.dense.row=2; parallel.moe.expert=4; "
            "parallel.moe.row=2"},
           {8, "parallel.dense.col=8; parallel.moe.expert=2; parallel.moe.row=2; parallel.moe.col=2"},
           {8, "parallel.stages=2; parallel.dense.col=2; parallel.moe.expert=4; optimizer.shard=data"},
           {8, "parallel.stages=4; parallel.dense.row=2; parallel.moe.expert=2"},
           {8,
            "parallel.stages=2; parallel.schedule=interleaved; parallel.interleave=2; parallel.moe.expert=2; "
            "parallel.moe.col=2"}}};
}

struct Job : test::Training<> {
  Job(const Family& family, const Layout& layout, const Communicator& group)
      : Training(test::deck_of(family.yaml, words(layout.text), group.size()), group) {}

  static std::vector<std::string> words(const std::string& text) {
    std::istringstream stream(text);
    std::vector<std::string> all;
    for (std::string word; std::getline(stream >> std::ws, word, ';');) all.push_back(word);
    return all;
  }
  // What no step of these models leaves.
  void forget() const {
    for (const checkpoint::NamedShard& shard : saved.shards())
      std::fill_n(static_cast<double*>(shard.data), shard.shard.size(), -1e300);
    saved.to_device();
  }
  void load(const std::string& folder) const {
    forget();
    ASSERT_TRUE(checkpoint::load_newest(comms.world(), folder, saved.shards()).loaded);
    saved.to_device();
  }
};

// The first tensor of which this rank holds other bits than `whole`; empty: none.
std::string first_other(const test::Tensors& whole, const std::vector<checkpoint::NamedShard>& shards) {
  for (const checkpoint::NamedShard& shard : shards) {
    const auto* data = static_cast<const double*>(shard.data);
    const std::vector<double>& all = whole.at(shard.name);
    for (std::int64_t i = 0; i < shard.shard.size(); ++i) {
      const double& saved = all.at(static_cast<std::size_t>(shard.shard.global_index(i)));
      if (std::memcmp(&saved, data + i, sizeof saved) != 0)
        return shard.name + " element " + std::to_string(shard.shard.global_index(i));
    }
  }
  return "";
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Saves a step of this layout in both ways, which gives one file, and returns what it holds as one rank reads it.
test::Tensors save(const Family& family, const Layout& layout, const std::string& folder, const Communicator& alone) {
  test::on_ranks(layout.ranks, [&](const Communicator& group) {
    Job writer(family, layout, group);
    writer.trainer.step();
    const checkpoint::State state = checkpoint_state(writer.deck, writer.loader, {1, writer.trainer.cursor()}, "test");
    checkpoint::SaveOptions options;
    options.strict_collective = true;
    checkpoint::save(group, folder + "/sync", 1, writer.shards(), state, options);
    checkpoint::AsyncSave async(group, folder + "/async", 1, writer.shards(), state, options);
    const test::Tensors held = test::values_of(writer.shards());
    writer.forget();  // the copy is what counts
    async.complete();
    writer.load(folder + "/sync");
    EXPECT_EQ(test::values_of(writer.shards()), held);
  });
  EXPECT_TRUE(bytes_of(folder + "/sync/step_00000001.h5") == bytes_of(folder + "/async/step_00000001.h5"));
  const Job whole(family, {1, ""}, alone);
  whole.load(folder + "/async");
  return test::values_of(whole.shards());
}

class EveryGrid : public testing::TestWithParam<Family> {};

TEST_P(EveryGrid, P07ReadsWhatEveryOtherSaved) {
  const Family& family = GetParam();
  ASSERT_GE(family.layouts.size(), 16u);
  const Communicator alone(world(), {world().rank()}, "alone");
  const std::string folder = broadcast_string(
      world(), (fs::temp_directory_path() / ("fourfold_every_grid_" + std::to_string(getpid()))).string());
  const std::vector<Layout> layouts = test::sample(family.layouts, 3);
  std::vector<test::Tensors> saved;
  const auto place = [&](std::size_t from) { return folder + "/" + std::to_string(from); };
  for (std::size_t from = 0; from < layouts.size(); ++from)
    saved.push_back(save(family, layouts[from], place(from), alone));
  int pairs = 0;
  for (const Layout& to : layouts) {
    test::on_ranks(to.ranks, [&](const Communicator& group) {
      const Job reader(family, to, group);
      for (std::size_t from = 0; from < layouts.size(); ++from) {
        reader.load(place(from) + "/async");
        EXPECT_EQ(first_other(saved[from], reader.shards()), "") << layouts[from].text << "\n  to " << to.text;
      }
    });
    pairs += static_cast<int>(layouts.size());
    if (agree_any(world(), testing::Test::HasFailure())) break;
  }
  if (world().rank() == 0) {
    std::printf("%s: %d pairs of grids\n", family.name.c_str(), pairs);
    fs::remove_all(folder);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, EveryGrid, testing::Values(dense(), mixture()),
                         [](const auto& family) { return family.param.name; });

}  // namespace
}  // namespace fourfold
