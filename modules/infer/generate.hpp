// Text from a model, a token at a time.
#pragma once

#include <functional>
#include <vector>

#include "comm/grid_comms.hpp"
#include "infer/sample.hpp"
#include "model/model.hpp"

namespace fourfold {

// A model knows contexts up to model.sequence tokens. The prompt passes through it at once, then each token alone, with
// keys and values of the past kept. When the window is full (or the prompt is longer) the context starts again from the
// last model.sequence / 2 tokens (at least one).
//
// `on_token` gets each new token on every rank as it comes; false ends the text. All ranks go on with rank 0's choice.
// Collective over the grid; every coordinate does the same work. Errors: assertion on an empty prompt.
template <class T>
std::vector<std::int32_t> generate_tokens(Model<T>& model, const GridComms& comms, Pool& pool,
                                          const std::vector<std::int32_t>& prompt, std::int64_t tokens,
                                          const SamplingOptions& options,
                                          const std::function<bool(std::int32_t)>& on_token);

}  // namespace fourfold
