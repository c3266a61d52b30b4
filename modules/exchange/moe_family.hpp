// What config.json says of mixtures of experts. Mixtral: softmax over all experts, the top_k of them, whose weights are
// made to sum up to 1, in every layer. Qwen2-MoE: the weights as they are, or made to sum up to 1 (norm_topk_prob), an
// expert that all tokens pass times a sigmoid, every n-th layer (decoder_sparse_step), feed-forward layers in the
// others.
#pragma once

#include <optional>
#include <string>

#include "exchange/config.hpp"
#include "exchange/family.hpp"

namespace fourfold::exchange {

// model.moe of a model whose other parts have been read. The auxiliary loss is taken where output_router_logits says
// that it was: its factor, of a loss that is defined otherwise there (one for all layers, times k).
void read_mixtral(const Config& config, ModelDeck& model);
void read_qwen2_moe(const Config& config, ModelDeck& model);

// What of model.moe neither family has; nothing where one has it (with model.bias qkv: Qwen2-MoE, else Mixtral).
std::optional<std::string> no_family_of_experts(const ModelDeck& model);

void write_experts(Family family, const ModelDeck& model, Json& json);

}  // namespace fourfold::exchange
