// bf16 with fp32 masters, end to end: close to fp64 on every grid, repeatable to the bit, sums in fp32 wherever ranks
// or micro-batches add, masters that a restart keeps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "comm/collectives.hpp"
#include "comm/launch.hpp"
#include "grid/process_grid.hpp"
#include "kernels/vector.hpp"
#include "layers/linear.hpp"
#include "mpi_test.hpp"
#include "runs.hpp"
#include "test_support.hpp"
#include "train/restart.hpp"

namespace fourfold {
namespace {

using kernels::bf16;
constexpr int kRanks = 8;

const Communicator& world() {
  return test::launch().world();
}

std::vector<std::string> on_grid(const DenseShape& g, std::vector<std::string> more = {}) {
  more.push_back("parallel.dense.data=" + std::to_string(g.data));
  more.push_back("parallel.dense.depth=" + std::to_string(g.depth));
  more.push_back("parallel.dense.row=" + std::to_string(g.row));
  more.push_back("parallel.dense.col=" + std::to_string(g.col));
  return more;
}

std::string name(const DenseShape& g) {
  return std::to_string(g.data) + "x" + std::to_string(g.depth) + "x" + std::to_string(g.row) + "x" +
         std::to_string(g.col);
}

// Everything a transformer can have, on sizes that do not divide.
std::string odd_transformer() {
  return R"(
run: {name: bf16, steps: 20, seed: 9}
model: {kind: transformer, layers: 2, hidden: 37, heads: 8, kv_heads: 2, head_dim: 6, vocab: 61, sequence: 19,
        positions: learned, norm: layer, ffn: {kind: gelu, hidden: 51}, bias: all, dropout: 0.1, init: {std: 0.1}}
data: {kind: synthetic, synthetic: dyadic, samples: 100}
batch: {global: 16}
optimizer: {kind: adamw, lr: 1.0e-2, weight_decay: 0.1, clip: 1.0}
precision: {compute: bf16}
numerics: {deterministic: true}
)";
}

double largest(const test::Tensors& tensors) {
  double most = 0;
  for (const auto& [tensor, values] : tensors) {
    for (const double value : values) most = std::max(most, std::abs(value));
  }
  return most;
}

double distance(const test::Tensors& a, const test::Tensors& b) {
  double most = 0;
  for (const auto& [tensor, values] : a) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double here = std::abs(values[i] - b.at(tensor)[i]);
      if (!(here <= most)) most = here;  // a NaN stays
    }
  }
  return most;
}

struct Variant {
  const char* how;
  bool (*fits)(const DenseShape&);
};
const std::vector<Variant>& variants() {
  static const std::vector<Variant> list = {
      {"parallel.overlap=true", [](const DenseShape&) { return true; }},
      {"parallel.sequence_shard=true", [](const DenseShape& g) { return g.row > 1; }},
      {"attention.split=col", [](const DenseShape& g) { return g.col > 1; }},
      {"parallel.depth_splits=sequence", [](const DenseShape& g) { return g.depth > 1; }},
      {"optimizer.shard=data", [](const DenseShape& g) { return g.data * g.depth > 1; }},
      {"model.ffn.kind=swiglu", [](const DenseShape&) { return true; }},
  };
  return list;
}

// A bf16 has 8 bits: one rounding is off by 2^-9 at most. A step of this model chains about 30 of them, which partly
// cancel. Bounds: loss 2^-10, norm 2^-6, gradients 2^-5 of the largest; the same holds between any two grids.
TEST(Bf16, EveryGridIsCloseToFp64) {
  const Communicator alone(world(), {world().rank()}, "alone");
  std::map<std::string, test::StepRecord> references;
  std::vector<std::pair<DenseShape, Variant>> all;
  for (const DenseShape& g : dense_factorisations(kRanks)) {
    for (const Variant& variant : variants()) {
      if (variant.fits(g)) all.emplace_back(g, variant);
    }
  }
  for (const auto& [g, variant] : test::sample(all, 16)) {
    SCOPED_TRACE(name(g) + " " + variant.how);
    const std::string model = std::string(variant.how).starts_with("model.") ? variant.how : "";
    if (!references.contains(model)) {
      std::vector<std::string> list{"precision.compute=fp64"};
      if (!model.empty()) list.push_back(model);
      references[model] = test::run_steps(test::deck_of(odd_transformer(), list, 1), alone, 1).front();
    }
    test::Shards shards;
    const test::StepRecord& whole = references[model];
    const test::StepRecord mine =
        test::run_steps(test::deck_of(odd_transformer(), on_grid(g, {variant.how}), kRanks), world(), 1, &shards)
            .front();
    EXPECT_NEAR(mine.loss, whole.loss, 0x1p-10 * whole.loss);
    EXPECT_NEAR(mine.grad_norm, whole.grad_norm, 0x1p-6 * whole.grad_norm);
    EXPECT_LE(distance(test::held_part(whole.gradients, shards), mine.gradients), 0x1p-5 * largest(whole.gradients));
    EXPECT_GT(std::abs(mine.loss - whole.loss), 0.0);  // or it was not bf16
  }
}

// Deterministic mode: the same bits again, and whatever buckets, overlap, sharding and gather.
TEST(Bf16, DeterministicRunsRepeatToTheBit) {
  for (const DenseShape& g : {DenseShape{8, 1, 1, 1}, DenseShape{2, 2, 2, 1}, DenseShape{1, 2, 2, 2}}) {
    std::vector<test::StepRecord> first;
    for (const std::vector<std::string>& more :
         std::vector<std::vector<std::string>>{{},
                                               {},
                                               {"parallel.overlap=false", "comm.bucket_bytes=4096"},
                                               {"optimizer.shard=data"},
                                               {"optimizer.shard=data", "optimizer.gather=lazy"}}) {
      const auto records = test::run_steps(test::deck_of(odd_transformer(), on_grid(g, more), kRanks), world(), 3);
      if (first.empty()) first = records;
      for (std::size_t i = 0; i < records.size(); ++i) {
        EXPECT_EQ(records[i].loss, first[i].loss) << name(g);
        EXPECT_EQ(records[i].grad_norm, first[i].grad_norm) << name(g);
        if (!records[i].weights.empty()) {
          EXPECT_EQ(records[i].weights, first[i].weights) << name(g);
        }
      }
    }
  }
}

// One rank brings 1, the others 511 micro-batches of 2^-9 between them. In bf16 the sum would stay 1.
TEST(Bf16, GradientsAreAddedInFloat) {
  for (const char* how : {"optimizer.shard=none", "optimizer.shard=data"}) {
    for (const char* deterministic : {"numerics.deterministic=true", "numerics.deterministic=false"}) {
      const Deck deck = test::deck_of(odd_transformer(), on_grid({8, 1, 1, 1}, {how, deterministic}), kRanks);
      test::Training<bf16> run(deck, world());
      const UpdatePlan& plan = run.trainer.plan();
      Reducer<bf16> reducer(deck, plan, run.comms, run.params());
      const Tensor<bf16> part(run.pool, MemoryTag::buffers, 1, 1);
      for (Param<bf16>& param : run.params().params()) {
        if (world().rank() == 0) {
          kernels::fill<float>(Space(), 1.0f, param.grad);
          continue;
        }
        kernels::fill<bf16>(Space(), bf16(0x1p-9f), part.vector());
        for (int micro_batch = 0; micro_batch < 73; ++micro_batch) {
          kernels::add<bf16, float>(Space(), part.vector(), kernels::Vector<float>(param.grad.data(), 1));
        }
      }
      reducer.reduce();
      for (const Param<bf16>& param : run.params().params()) {
        const Range mine = range_in_part(param, plan.group(static_cast<std::size_t>(param.group)));
        if (mine.begin > 0 || mine.empty()) continue;
        float first = 0;
        Kokkos::deep_copy(Kokkos::View<float, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>(&first),
                          Kokkos::subview(param.grad, 0));
        EXPECT_EQ(first, 1.998046875f) << param.spec.name;
      }
    }
  }
}

// Partial outputs of a layer over col and partial input gradients over row, two terms from each of 8 ranks. 1 and seven
// times 2^-9: added one by one in bf16 they would stay 1. 1 + 2^-9 from one rank and -1 from the next: rounded before
// they are added they would cancel.
TEST(Bf16, PartialProductsAreAddedInFloat) {
  std::vector<double> small(16, 0.0), cancels(16, 0.0);
  for (std::size_t i = 0; i < 16; i += 2) small[i] = i == 0 ? 1.0 : 0x1p-9;
  cancels[0] = 1.0;
  cancels[1] = 0x1p-9;
  cancels[2] = -1.0;
  for (const auto& [terms, expected] : {std::pair(small, 1.015625f), std::pair(cancels, 0x1p-9f)}) {
    for (const DenseShape& g : {DenseShape{1, 1, 1, 8}, DenseShape{1, 1, 8, 1}}) {
      const GridComms comms(world(), ProcessGrid({StageShape{g, MoeShape{.replica = kRanks}}}), dense_axis_sets());
      MemoryLedger memory;
      Pool pool(memory);
      ParamStore<bf16> store;
      Deferred deferred(2);
      GatherQueue<bf16> gathers;
      const LayerContext<bf16> context{comms, pool, store, {}, deferred, gathers};
      const Initializer init = [&terms](std::int64_t first, std::span<double> values) {
        for (double& value : values) value = terms[static_cast<std::size_t>(first++)];
      };
      const bool forward = g.col == 8;
      const Linear<bf16> layer(context, {even_segment(context, "w.weight", forward ? 1 : 16, Axis::row, init)},
                               forward ? 16 : 1, {Orientation{}, false, true});
      store.allocate(pool);
      const auto ones = [&](Index columns) {
        Tensor<bf16> x(pool, MemoryTag::activations, 3, columns);
        kernels::fill<bf16>(Space(), bf16(1), x.vector());
        return x;
      };
      Linear<bf16>::Kept kept;
      Tensor<bf16> sum = layer.forward(ones(forward ? 2 : 1), &kept);
      if (!forward) sum = layer.backward_input(ones(2), kept);
      const auto host = Kokkos::create_mirror_view(sum.vector());
      Kokkos::deep_copy(host, sum.vector());
      ASSERT_EQ(sum.size(), 3);
      for (int row = 0; row < 3; ++row) EXPECT_EQ(float(host(row)), expected);
    }
  }
}

template <class E>
std::vector<E> copy_of(const checkpoint::NamedShard& shard) {
  const auto* data = static_cast<const E*>(shard.data);
  return std::vector<E>(data, data + shard.shard.size());
}

std::vector<double> widened(const checkpoint::NamedShard& shard) {
  if (shard.type == checkpoint::ElementType::bf16) {
    const auto values = copy_of<bf16>(shard);
    return {values.begin(), values.end()};
  }
  const auto values = copy_of<float>(shard);
  return {values.begin(), values.end()};
}

struct Job : test::Training<bf16> {
  Job(const DenseShape& g, const Communicator& group, const std::string& folder)
      : Training(test::deck_of(odd_transformer(), on_grid(g, {"run.folder=" + folder}), group.size()), group) {}

  void save() {
    prepare_folder(comms.world(), deck);
    save_checkpoint(comms.world(), deck, loader, shards(), {trainer.steps_done(), trainer.cursor()}, {}, {});
  }
  void load(const std::string& folder) {
    const checkpoint::Restart restart = checkpoint::load_newest(comms.world(), folder + "/checkpoints", saved.shards());
    ASSERT_TRUE(restart.loaded);
    saved.to_device();
    trainer.resume(restart.loaded->state.integer("step"), restart.loaded->state.integer("cursor"));
  }
  std::map<std::string, std::map<std::int64_t, double>> held() const {
    std::map<std::string, std::map<std::int64_t, double>> all;
    for (const checkpoint::NamedShard& shard : shards()) {
      const std::vector<double> values = widened(shard);
      for (std::int64_t i = 0; i < shard.shard.size(); ++i) {
        all[shard.name][shard.shard.global_index(i)] = values[static_cast<std::size_t>(i)];
      }
    }
    return all;
  }
};

// Values in bf16, moments and masters in fp32, the masters among the states: read on another grid they are what was
// written, a master between two bf16 included; on the same grid the run goes on to the bit.
TEST(Bf16, MastersSurviveARestartOnAnyGrid) {
  const std::string folder = (std::filesystem::path(testing::TempDir()) / "fourfold_bf16_restart").string();
  if (world().rank() == 0) std::filesystem::remove_all(folder);
  barrier(world(), Phase::control);
  const DenseShape from{2, 2, 2, 1};
  Job writer(from, world(), folder);
  writer.trainer.step();
  writer.trainer.step();
  // Of every tensor the first element: between two bf16.
  for (const auto& state : writer.trainer.optimizer().states()) {
    if (state.kind != "master" || state.shard.size() == 0 || state.shard.global_index(0) != 0) continue;
    kernels::fill<float>(Space(), 1.0001f, kernels::Vector<float>(state.values.data(), 1));
    kernels::fill<bf16>(Space(), bf16(1), kernels::Vector<bf16>(state.param->value.data(), 1));
  }
  writer.save();
  const auto written = writer.held();
  EXPECT_EQ(written.at("/params/layers.0.ffn.up.weight").empty(),
            written.at("/optimizer/master/layers.0.ffn.up.weight").empty());
  const double loss = writer.trainer.step().loss;

  const Communicator alone(world(), {world().rank()}, "alone");
  Job whole({}, alone, folder);
  whole.load(folder);
  const auto all = whole.held();
  EXPECT_EQ(all.at("/optimizer/master/embedding.token").at(0), static_cast<double>(1.0001f));
  EXPECT_EQ(all.at("/params/embedding.token").at(0), 1.0);
  for (const auto& [tensor, values] : written) {
    for (const auto& [index, value] : values) ASSERT_EQ(value, all.at(tensor).at(index)) << tensor;
  }
  for (const auto& [tensor, values] : all) {
    if (!tensor.starts_with("/params/")) continue;
    const auto& masters = all.at("/optimizer/master/" + tensor.substr(8));
    for (const auto& [index, value] : values) {
      ASSERT_EQ(value, static_cast<double>(bf16(masters.at(index)))) << tensor << " " << index;
    }
  }

  Job again(from, world(), folder);
  again.load(folder);
  EXPECT_EQ(again.trainer.step().loss, loss);
  EXPECT_EQ(again.held(), writer.held());
  Job other({1, 2, 2, 2}, world(), folder);
  other.load(folder);
  EXPECT_NEAR(other.trainer.step().loss, loss, 0x1p-9 * loss);
  barrier(world(), Phase::control);
  if (world().rank() == 0) std::filesystem::remove_all(folder);
}

// Twenty steps of less than half a unit of a norm's weight, 1: the loss stays beside fp64's, and the weights come as
// far as there, where bf16 alone would not move them.
TEST(Bf16, TrainsAsFp64Does) {
  const Communicator alone(world(), {world().rank()}, "alone");
  const std::vector<std::string> small_rate = {"optimizer.lr=1.0e-3", "optimizer.clip=0", "optimizer.weight_decay=0"};
  std::vector<std::string> wide = small_rate;
  wide.push_back("precision.compute=fp64");
  const auto expected = test::run_steps(test::deck_of(odd_transformer(), wide, 1), alone, 20);
  test::Shards shards;
  const auto records = test::run_steps(test::deck_of(odd_transformer(), on_grid({2, 1, 2, 2}, small_rate), kRanks),
                                       world(), 20, &shards);
  for (std::size_t i = 0; i < records.size(); ++i) {
    EXPECT_NEAR(records[i].loss, expected[i].loss, 0x1p-8 * expected[i].loss) << "step " << i + 1;
  }
  const test::Tensors whole = test::held_part(expected.back().weights, shards);
  double moved = 0, apart = 0;
  for (const auto& [tensor, values] : records.back().weights) {
    if (!tensor.ends_with("norm.weight")) continue;
    for (std::size_t i = 0; i < values.size(); ++i) {
      moved += std::abs(whole.at(tensor)[i] - 1.0);
      apart += std::abs(whole.at(tensor)[i] - values[i]);
    }
  }
  EXPECT_LT(apart, 0.5 * moved);
}

}  // namespace
}  // namespace fourfold
