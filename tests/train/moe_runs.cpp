#include "moe_runs.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "train/evaluate.hpp"
#include "train/pipeline.hpp"

namespace fourfold::test {

Texts overrides(const Folding& f) {
  const auto entry = [](const char* axis, int extent) { return std::string(axis) + ": " + std::to_string(extent); };
  return {"parallel.dense={" + entry("data", f.dense.data) + ", " + entry("depth", f.dense.depth) + ", " +
              entry("row", f.dense.row) + ", " + entry("col", f.dense.col) + "}",
          "parallel.moe={" + entry("replica", f.moe.replica) + ", " + entry("expert", f.moe.expert) + ", " +
              entry("row", f.moe.row) + ", " + entry("col", f.moe.col) + "}"};
}

std::vector<Folding> foldings(int ranks, int experts, int rows) {
  std::vector<Folding> all;
  for (const DenseShape& dense : dense_factorisations(ranks)) {
    for (const MoeShape& moe : moe_factorisations(ranks)) {
      if (moe.expert <= experts && dense.row <= rows) all.push_back({dense, moe});
    }
  }
  return all;
}

std::vector<Variant> variants(const std::vector<Folding>& foldings, const Texts& more) {
  std::vector<Variant> list;
  for (const Folding& f : foldings) {
    Variant variant{overrides(f), static_cast<int>(f.dense.size())};
    variant.overrides.insert(variant.overrides.end(), more.begin(), more.end());
    list.push_back(variant);
  }
  return list;
}

std::string t0_moe() {
  std::ifstream file(FOURFOLD_SOURCE_DIR "/inputs/t0_moe.yaml");
  std::stringstream text;
  text << file.rdbuf();
  std::string deck = text.str();
  const std::string fp32 = "compute: fp32";
  return deck.replace(deck.find(fp32), fp32.size(), "compute: fp64");
}

Texts small_t0_moe() {
  return {"model.layers=2",   "model.hidden=16",     "model.head_dim=2",   "model.vocab=33",
          "model.sequence=8", "model.ffn.hidden=24", "model.moe.hidden=10"};
}

std::string odd_moe() {
  return R"(
run: {name: odd, steps: 4, seed: 9}
model: {kind: transformer, layers: 2, hidden: 13, heads: 8, kv_heads: 2, head_dim: 3, vocab: 29, sequence: 7,
        positions: learned, norm: layer, ffn: {kind: gelu, hidden: 17}, bias: all, init: {std: 0.2},
        moe: {every: 2, experts: 6, top_k: 3, hidden: 11, jitter: 0.1, shared_hidden: 5,
              shared_gate: true, balance: {aux: 0.05, z: 0.01, bias_rate: 0.004}}}
data: {kind: synthetic, synthetic: dyadic, samples: 100, valid_samples: 5}
batch: {global: 16}
optimizer: {kind: momentum, lr: 0.1, weight_decay: 0.1, clip: 1.0}
precision: {compute: fp64}
)";
}

std::vector<StepReport> reports_of(const std::string& yaml, const Texts& list, int ranks, int steps) {
  std::vector<StepReport> reports;
  on_ranks(ranks, [&](const Communicator& group) {
    Training<> run(deck_of(yaml, list, ranks), group);
    for (int step = 0; step < steps; ++step) reports.push_back(run.trainer.step());
  });
  return reports;
}

void expect_gate_gradient(const Deck& deck, const Communicator& ranks, const std::string& router, double tolerance) {
  constexpr double kStep = 1e-5;
  Training<> run(deck, ranks);
  Param<double>* gate = nullptr;
  for (Param<double>& param : run.params().params()) {
    if (param.spec.name == router) gate = &param;
  }
  ASSERT_NE(gate, nullptr);
  // The same samples and draws each time.
  const BalanceDeck& balance = deck.model.moe->balance;
  const auto total = [&] {
    run.trainer.resume(0, 0);
    const StepReport report = run.trainer.step();
    return report.loss + balance.aux * aux_loss(report.moe) + balance.z * z_loss(report.moe);
  };
  total();
  const auto mirror = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), gate->grad);
  const std::vector<double> gradient(mirror.data(), mirror.data() + mirror.extent(0));
  double largest = 0;
  for (const double each : gradient) largest = std::max(largest, std::abs(each));
  for (std::size_t entry = 0; entry < 10; ++entry) {
    const std::size_t at = entry * 7 % gradient.size();
    const auto value = Kokkos::subview(gate->value, at);
    double original = 0;
    Kokkos::deep_copy(original, value);
    Kokkos::deep_copy(value, original + kStep);
    const double above = total();
    Kokkos::deep_copy(value, original - kStep);
    const double below = total();
    Kokkos::deep_copy(value, original);
    EXPECT_NEAR((above - below) / (2 * kStep), gradient[at], tolerance * largest + 1e-9) << "entry " << at;
  }
}

double first_evaluation(const Deck& deck, const Communicator& ranks) {
  const GridComms comms = grid_comms(deck, ranks);
  const Loader loader(deck);
  MemoryLedger memory;
  Pool pool(memory);
  const PipelinePlan plan = plan_pipeline(deck);
  Model<double> model(deck, comms, pool, plan.part_of(comms.here().stage));
  return evaluate(model, plan, loader, comms, pool, {})->loss;
}

void expect_same_report(const MoeReport& a, const MoeReport& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].layer, b[i].layer);
    EXPECT_NEAR(a[i].aux, b[i].aux, tolerance * a[i].aux);
    EXPECT_NEAR(a[i].z, b[i].z, tolerance * a[i].z);
    EXPECT_NEAR(a[i].entropy, b[i].entropy, tolerance * a[i].entropy);
    EXPECT_EQ(a[i].dropped, b[i].dropped);
    EXPECT_EQ(a[i].max_load, b[i].max_load);
  }
}

}  // namespace fourfold::test
