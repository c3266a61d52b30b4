// Runs of any pipeline beside the same run on one rank.
#pragma once

#include <string>
#include <vector>

#include "runs.hpp"

namespace fourfold::test {

// Blocks h + W2 relu(W1 h) on dyadic numbers: the same bits in any order of additions.
std::string dyadic_stack();

// What a rank has of the reference, to `tolerance` of the largest magnitude in the whole model; 0: bit for bit.
void expect_part(const Tensors& whole, const Tensors& mine, const Shards& shards, double tolerance);

struct Variant {
  std::vector<std::string> overrides;
  int ranks = 1;
};

// Losses, gradients, norms and weights of each of `steps` steps as one rank has them; skips in launches of other than 8
// ranks. Collective over the launch.
void expect_like_serial(const std::string& yaml, const std::vector<Variant>& variants, int steps, double tolerance);

}  // namespace fourfold::test
