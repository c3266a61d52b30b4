// Text from a model, a token of every sequence at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "comm/grid_comms.hpp"
#include "infer/sample.hpp"
#include "model/model.hpp"

namespace fourfold {

using Ids = std::vector<std::int32_t>;

struct GenerateOptions {
  SamplingOptions sampling;
  std::int64_t tokens = 256;  // new ones of a prompt, at most
  // Sequences that are under way at once on each stage, over all coordinates; with several stages so many again for
  // each, which keeps all of them at work. Where one ends the next prompt takes its place.
  std::int64_t at_once = 8;
};

// Gets each new token on every rank as it comes; false ends the text of this prompt. The same on all ranks.
using OnToken = std::function<bool(std::size_t prompt, std::int32_t token)>;

// The new tokens of each prompt. Prompts pass through the model at once, then each token alone, with keys and values of
// the past kept. A model knows contexts up to model.sequence tokens: when that window is full (or the prompt is longer)
// the context starts again from the last model.sequence / 2 tokens (at least one).
//
// Tokens are drawn in fp64 from the last stage's logits, as functions of (seed, prompt, number of the token), and told
// to all ranks. `model` is this stage's part, of one chunk. Collective over all stages; coordinates without a sequence
// run along with no rows. Errors: assertion on an empty prompt.
template <class T>
std::vector<Ids> generate_tokens(Model<T>& model, const GridComms& comms, Pool& pool, const std::vector<Ids>& prompts,
                                 const GenerateOptions& options, const OnToken& on_token);

}  // namespace fourfold
