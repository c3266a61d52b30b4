// Which tensor of ours is which part of whose.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exchange/family.hpp"

namespace fourfold::exchange {

// Ours is out x in, or one dim. Theirs holds it whole, or as the outputs [first, first + out) of a wider one (GPT-2's
// c_attn: q, k and v; stacked experts, E x out x in, whose rows are counted through), and GPT-2's matrices are in x
// out.
struct TensorMap {
  std::string ours;  // "layers.0.attention.q.weight"
  std::vector<std::int64_t> shape;
  std::string theirs;  // without GPT-2's optional prefix
  std::vector<std::int64_t> their_shape;
  bool transposed = false;
  std::int64_t first = 0;
};

// How files hold experts: each matrix of each by itself, or those of all together (gate and up in one: each expert's
// gate, then its up). Programs that read the stacked ones read the others too.
enum class ExpertLayout { each, stacked };

// Every tensor of ours once, in an order in which each of theirs comes together, from its first output to its last.
// Rows of q and k are in half-split order on both sides. A tied head is not there.
std::vector<TensorMap> tensor_maps(Family family, const ModelDeck& model, ExpertLayout experts);

// The end of a name that only files with stacked experts have.
inline constexpr const char* kStackedExperts = ".mlp.experts.gate_up_proj";

// The prefix that files of GPT-2 may have before every name, and names that hold no weights.
inline constexpr const char* kGpt2Prefix = "transformer.";
bool is_no_weight(Family family, const std::string& theirs);

}  // namespace fourfold::exchange
