// What the tests of mixtures of experts share: foldings of the two grids, decks, reports of steps.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "grid/factorisation.hpp"
#include "like_serial.hpp"
#include "mpi_test.hpp"
#include "runs.hpp"

namespace fourfold::test {

using Texts = std::vector<std::string>;

inline const Communicator& world() {
  return launch().world();
}
#define FOURFOLD_EIGHT_RANKS() \
  if (fourfold::test::world().size() != 8) GTEST_SKIP() << "NOT TESTED in this launch: the launch of 8 ranks runs it"

struct Folding {
  DenseShape dense;
  MoeShape moe;
};

// The deck's keys of a folding.
Texts overrides(const Folding& f);

// Every MoE grid with every dense grid whose rows the model's heads allow.
std::vector<Folding> foldings(int ranks, int experts, int rows = 8);

constexpr int kRows = 4;  // of small_transformer()

// For a residual stack whose second blocks are mixtures: top-1 and renormalised, so the weights are exactly 1.
constexpr const char* kDyadicMoe = "model.moe={every: 2, experts: 5, top_k: 1, hidden: 6}";

std::vector<Variant> variants(const std::vector<Folding>& foldings, const Texts& more = {});

std::string t0_moe();  // inputs/t0_moe.yaml in fp64
// What makes of t0_moe() a model of the same kinds whose steps cost little: for long lists of grids.
Texts small_t0_moe();
// Sizes that do not divide, biases, jitter, a shared expert with its gate, a bias on the choice; experts in every
// second block.
std::string odd_moe();

// What each rank is told about all layers, wherever they are: of each of `steps` steps on the first `ranks` ranks;
// empty elsewhere. Collective over the launch.
std::vector<StepReport> reports_of(const std::string& yaml, const Texts& list, int ranks, int steps);

// Ten entries of `router`'s gradient in fp64 against central differences of the whole loss, within `tolerance` of the
// largest. `deck` learns nothing (optimizer.lr=0) and has as many steps as it takes. Collective over `ranks`.
void expect_gate_gradient(const Deck& deck, const Communicator& ranks, const std::string& router, double tolerance);

// The loss of the initial model on the validation data. Collective over `ranks`.
double first_evaluation(const Deck& deck, const Communicator& ranks);

void expect_same_report(const MoeReport& a, const MoeReport& b, double tolerance);

}  // namespace fourfold::test
