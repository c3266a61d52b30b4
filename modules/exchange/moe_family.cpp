#include "exchange/moe_family.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

namespace fourfold::exchange {

namespace {

// Both are those of a deck; together they bound the tensors that are looked for.
constexpr std::int64_t kMostExperts = 65536;
constexpr std::int64_t kMostInAll = std::int64_t{1} << 22;

void read_sizes(const Config& config, const char* experts, std::int64_t top_k, ModelDeck& model) {
  MoeDeck& moe = model.moe.emplace();
  moe.experts = config.size(experts);
  moe.top_k = config.size("num_experts_per_tok", top_k);
  if (moe.experts > kMostExperts || moe.experts * model.layers > kMostInAll) {
    config.refuse(std::string(experts) + " " + std::to_string(moe.experts) + " in " + std::to_string(model.layers) +
                  " layers; at most " + std::to_string(kMostExperts) + " in a layer and " + std::to_string(kMostInAll) +
                  " in all");
  }
  if (moe.top_k > moe.experts) {
    config.refuse("num_experts_per_tok " + std::to_string(moe.top_k) + " is more than " + experts + " " +
                  std::to_string(moe.experts));
  }
  if (config.flag("output_router_logits", false)) moe.balance.aux = config.number("router_aux_loss_coef", 0.001);
  if (moe.balance.aux < 0) config.refuse("router_aux_loss_coef must be 0 or more");
}

}  // namespace

void read_mixtral(const Config& config, ModelDeck& model) {
  read_sizes(config, "num_local_experts", 2, model);
  model.moe->hidden = model.ffn.hidden;
  model.moe->jitter = config.number("router_jitter_noise", 0.0);
  if (!(model.moe->jitter >= 0 && model.moe->jitter < 1))
    config.refuse("router_jitter_noise must be from 0 to below 1");
  // A window that no context exceeds changes nothing.
  if (config.has("sliding_window")) {
    config.require(config.size("sliding_window") >= model.sequence, "sliding_window",
                   "null, or max_position_embeddings or more");
  }
}

void read_qwen2_moe(const Config& config, ModelDeck& model) {
  read_sizes(config, "num_experts", 4, model);
  MoeDeck& moe = *model.moe;
  moe.hidden = config.size("moe_intermediate_size");
  moe.shared_hidden = config.size("shared_expert_intermediate_size");
  moe.shared_gate = true;
  moe.renormalize = config.flag("norm_topk_prob", false);
  // Layers with experts: the last of every `step`, as model.moe.every has it, but for those that a list names.
  const auto every = [layers = model.layers](std::int64_t step) {
    std::vector<bool> with(static_cast<std::size_t>(layers));
    for (std::int64_t layer = step - 1; layer < layers; layer += step) with[static_cast<std::size_t>(layer)] = true;
    return with;
  };
  std::vector<bool> sparse = every(config.size("decoder_sparse_step", 1));
  if (config.has("mlp_only_layers")) {
    const Json& dense = config.at("mlp_only_layers");
    if (!dense.is_array()) config.refuse("mlp_only_layers must be a list, not " + dense.dump());
    for (const Json& layer : dense) {
      if (!layer.is_number_unsigned() || layer.get<std::uint64_t>() >= sparse.size()) {
        config.refuse("mlp_only_layers names " + layer.dump() + " of " + std::to_string(model.layers) + " layers");
      }
      sparse[layer.get<std::size_t>()] = false;
    }
  }
  // The first layer that has them says how many lie between them.
  moe.every = std::find(sparse.begin(), sparse.end(), true) - sparse.begin() + 1;
  if (moe.every > model.layers || sparse != every(moe.every)) {
    const char* key = config.has("mlp_only_layers") && !config.at("mlp_only_layers").empty() ? "mlp_only_layers"
                                                                                             : "decoder_sparse_step";
    config.refuse(std::string(key) + " " + config.at(key).dump() +
                  " is not built; built: experts in the last of every n layers, as decoder_sparse_step n has it");
  }
}

std::optional<std::string> no_family_of_experts(const ModelDeck& model) {
  const MoeDeck& moe = *model.moe;
  if (moe.score != ScoreKind::softmax) return "model.moe.score sigmoid";
  if (moe.groups > 1) return "model.moe.groups " + std::to_string(moe.groups);
  if (moe.balance.bias_rate > 0) return "model.moe.balance.bias_rate, a bias on the choice of experts";
  if (moe.capacity.factor > 0) return "model.moe.capacity.factor, experts that drop tokens";
  if (moe.forced.routing != ForcedRoutingKind::none) return "model.moe.forced.routing";
  if (model.bias == BiasKind::qkv) {
    if (moe.shared_hidden == 0) return "experts and model.bias qkv without model.moe.shared_hidden";
    if (!moe.shared_gate) return "model.moe.shared_hidden without model.moe.shared_gate";
    return std::nullopt;
  }
  if (moe.shared_hidden > 0) return "model.moe.shared_hidden without model.bias qkv";
  if (!moe.renormalize) return "model.moe.renormalize false without a shared expert";
  if (moe.every > 1) return "model.moe.every " + std::to_string(moe.every) + " without a shared expert";
  return std::nullopt;
}

void write_experts(Family family, const ModelDeck& model, Json& json) {
  const MoeDeck& moe = *model.moe;
  if (family == Family::mixtral) {
    json["intermediate_size"] = moe.hidden;
    json["num_local_experts"] = moe.experts;
    json["router_jitter_noise"] = moe.jitter;
    json["sliding_window"] = Json();
  } else {
    json["num_experts"] = moe.experts;
    json["moe_intermediate_size"] = moe.hidden;
    json["shared_expert_intermediate_size"] = moe.shared_hidden;
    json["norm_topk_prob"] = moe.renormalize;
    json["decoder_sparse_step"] = moe.every;
    json["mlp_only_layers"] = Json::array();
  }
  json["num_experts_per_tok"] = moe.top_k;
  json["router_aux_loss_coef"] = moe.balance.aux;
  json["output_router_logits"] = moe.balance.aux > 0;
}

}  // namespace fourfold::exchange
