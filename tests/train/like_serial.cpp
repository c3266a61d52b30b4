#include "like_serial.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "comm/agree.hpp"
#include "comm/launch.hpp"
#include "mpi_test.hpp"

namespace fourfold::test {

std::string dyadic_stack() {
  return R"(
run: {name: stack, steps: 12, seed: 3}
model: {kind: residual, layers: 8, hidden: 10, ffn: {hidden: 14}, activation: relu, loss: squared_error,
        init: {kind: dyadic, nonzeros: 1}}
data: {kind: synthetic, synthetic: dyadic, samples: 240}
batch: {global: 120, micro_batches: 1}
optimizer: {kind: momentum, lr: 0.5, clip: 1.0}
precision: {compute: fp64}
numerics: {snap: 8}
)";
}

namespace {

double largest(const Tensors& tensors) {
  double most = 0;
  for (const auto& [tensor, values] : tensors) {
    for (const double value : values) most = std::max(most, std::abs(value));
  }
  return most;
}

// What the reference must share with a variant: the model, the loss, the optimizer, the batch.
bool changes_the_run(const std::string& entry) {
  constexpr std::array<const char*, 4> kOf = {"model.", "loss.", "optimizer.kind", "batch.global"};
  return std::any_of(kOf.begin(), kOf.end(), [&](const char* start) { return entry.starts_with(start); });
}

// The names on all ranks.
std::set<std::string> tensors_of_all(const Communicator& ranks, const Shards& shards) {
  std::string mine;
  for (const auto& entry : shards) mine += entry.first + "\n";
  std::set<std::string> tensors;
  for (const std::string& all : gather_strings(ranks, mine)) {
    for (std::size_t begin = 0; begin < all.size();) {
      const std::size_t end = all.find('\n', begin);
      tensors.insert(all.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  return tensors;
}

}  // namespace

void expect_part(const Tensors& whole, const Tensors& mine, const Shards& shards, double tolerance) {
  const Tensors expected = held_part(whole, shards);
  if (tolerance == 0) {
    EXPECT_EQ(mine, expected);
    return;
  }
  const double scale = largest(whole);
  double most = 0;
  for (const auto& [tensor, values] : expected) {
    const std::vector<double>& others = mine.at(tensor);
    ASSERT_EQ(others.size(), values.size()) << tensor;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double here = std::abs(values[i] - others[i]);
      if (!(here <= most)) most = here;  // a NaN stays
    }
  }
  EXPECT_LE(most, tolerance * scale);
}

void expect_like_serial(const std::string& yaml, const std::vector<Variant>& variants, int steps, double tolerance) {
  const Communicator& world = launch().world();
  if (world.size() != 8) GTEST_SKIP() << "NOT TESTED in this launch: the launch of 8 ranks runs it";
  const Communicator alone(world, {world.rank()}, "alone");
  std::map<std::string, std::vector<StepRecord>> references;
  for (const Variant& variant : variants) {
    std::string run, name;
    std::vector<std::string> of_run;
    for (const std::string& entry : variant.overrides) {
      name += entry + " ";
      if (!changes_the_run(entry)) continue;
      of_run.push_back(entry);
      run += entry + " ";
    }
    auto& reference = references[run];
    if (reference.empty()) reference = run_steps(deck_of(yaml, of_run, 1), alone, steps);
    SCOPED_TRACE(name);
    on_ranks(variant.ranks, [&](const Communicator& ranks) {
      Shards shards;
      const auto records = run_steps(deck_of(yaml, variant.overrides, ranks.size()), ranks, steps, &shards);
      const std::set<std::string> tensors = tensors_of_all(ranks, shards);
      EXPECT_EQ(ranks.rank() == 0 ? tensors.size() : reference[0].weights.size(), reference[0].weights.size());
      for (std::size_t i = 0; i < records.size(); ++i) {
        SCOPED_TRACE("step " + std::to_string(i + 1));
        EXPECT_LE(std::abs(records[i].loss - reference[i].loss), tolerance * std::abs(reference[i].loss));
        EXPECT_LE(std::abs(records[i].grad_norm - reference[i].grad_norm), tolerance * reference[i].grad_norm);
        expect_part(reference[i].gradients, records[i].gradients, shards, tolerance);
        // With a lazy gather they are read after the last step alone.
        if (!records[i].weights.empty()) expect_part(reference[i].weights, records[i].weights, shards, tolerance);
        if (testing::Test::HasFailure()) return;
      }
    });
    if (agree_any(world, testing::Test::HasFailure())) return;
  }
}

}  // namespace fourfold::test
