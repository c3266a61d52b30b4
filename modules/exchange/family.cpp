#include "exchange/family.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.hpp"
#include "exchange/config.hpp"
#include "exchange/moe_family.hpp"

namespace fourfold::exchange {

namespace {

// As many as a deck may have.
std::int64_t layer_count(const Config& config, const char* key) {
  constexpr std::int64_t kMost = 10000;
  const std::int64_t layers = config.size(key);
  if (layers > kMost) config.refuse(std::string(key) + " " + std::to_string(layers) + "; legal: 1 to 10000");
  return layers;
}

ModelDeck read_gpt2(const Config& config) {
  ModelDeck model;
  model.layers = layer_count(config, "n_layer");
  model.hidden = config.size("n_embd");
  model.heads = config.size("n_head");
  model.vocab = config.size("vocab_size");
  model.sequence = config.size("n_positions", config.size("n_ctx", 1024));
  model.ffn.hidden = config.size("n_inner", 4 * model.hidden);
  model.norm_eps = config.number("layer_norm_epsilon", 1e-5);
  const std::string activation = config.word("activation_function", "gelu_new");
  config.require(activation == "gelu_new" || activation == "gelu_pytorch_tanh" || activation == "gelu",
                 "activation_function", "gelu_new, gelu");
  model.ffn.kind = activation == "gelu" ? FeedForwardKind::gelu : FeedForwardKind::gelu_tanh;
  config.require(config.flag("scale_attn_weights", true), "scale_attn_weights", "true");
  config.require(!config.flag("scale_attn_by_inverse_layer_idx", false), "scale_attn_by_inverse_layer_idx", "false");
  config.require(!config.flag("add_cross_attention", false), "add_cross_attention", "false");
  model.positions = Positions::learned;
  model.norm = NormKind::layer;
  model.bias = BiasKind::all;
  model.tie_embeddings = config.flag("tie_word_embeddings", true);
  return model;
}

// rope_scaling, or rope_parameters with the base in it.
void read_rope(const Config& config, const char* key, ModelDeck& model) {
  if (!config.has(key)) return;
  const Json& rope = config.at(key);
  if (!rope.is_object()) config.refuse(std::string(key) + " must be an object, not " + rope.dump());
  const auto number = [&](const char* name, std::optional<double> otherwise) {
    if (rope.contains(name) && rope.at(name).is_number() && rope.at(name).get<double>() > 0) {
      return rope.at(name).get<double>();
    }
    if (rope.contains(name) || !otherwise) {
      config.refuse(std::string(key) + ": " + name + " must be a number above 0, not " +
                    (rope.contains(name) ? rope.at(name).dump() : "missing"));
    }
    return *otherwise;
  };
  const char* kind_key = rope.contains("rope_type") ? "rope_type" : "type";
  const std::string kind =
      rope.contains(kind_key) && rope.at(kind_key).is_string() ? rope.at(kind_key).get<std::string>() : "";
  model.rope_theta = number("rope_theta", model.rope_theta);
  RopeScalingDeck& scaling = model.rope_scaling;
  if (kind == "default" || (kind.empty() && key == std::string("rope_parameters"))) return;
  if (kind == "linear") {
    scaling.kind = RopeScaling::linear;
  } else if (kind == "llama3") {
    scaling.kind = RopeScaling::llama3;
    scaling.low = number("low_freq_factor", std::nullopt);
    scaling.high = number("high_freq_factor", std::nullopt);
    const double original = number("original_max_position_embeddings", std::nullopt);
    scaling.original_sequence = static_cast<std::int64_t>(original);
    if (static_cast<double>(scaling.original_sequence) != original || scaling.low >= scaling.high) {
      config.refuse(std::string(key) + " " + rope.dump() +
                    " wants a whole original_max_position_embeddings, and "
                    "low_freq_factor below high_freq_factor");
    }
  } else {
    // Its angles depend on the length of what is read, but not up to max_position_embeddings.
    config.require(kind == "dynamic", key, "rope_type default, linear, llama3, dynamic");
    scaling.kind = RopeScaling::dynamic;
  }
  scaling.factor = number("factor", std::nullopt);
  if (scaling.factor < 1) config.refuse(std::string(key) + ": factor must be 1 or more");
}

Json write_rope(const RopeScalingDeck& scaling) {
  switch (scaling.kind) {
    case RopeScaling::none:
      break;
    case RopeScaling::linear:
      return {{"rope_type", "linear"}, {"factor", scaling.factor}};
    case RopeScaling::dynamic:
      return {{"rope_type", "dynamic"}, {"factor", scaling.factor}};
    case RopeScaling::llama3:
      return {{"rope_type", "llama3"},
              {"factor", scaling.factor},
              {"low_freq_factor", scaling.low},
              {"high_freq_factor", scaling.high},
              {"original_max_position_embeddings", scaling.original_sequence}};
  }
  return nullptr;
}

// Llama and what was made after it.
ModelDeck read_llama(const Config& config, Family family) {
  const bool qwen = family == Family::qwen2 || family == Family::qwen2_moe;
  ModelDeck model;
  model.layers = layer_count(config, "num_hidden_layers");
  model.hidden = config.size("hidden_size");
  model.heads = config.size("num_attention_heads");
  model.kv_heads = config.size("num_key_value_heads", model.heads);
  model.head_dim = config.size("head_dim", 0);
  model.vocab = config.size("vocab_size");
  model.sequence = config.size("max_position_embeddings", qwen ? 32768 : 2048);
  model.ffn.kind = FeedForwardKind::swiglu;
  model.ffn.hidden = config.size("intermediate_size");
  model.norm_eps = config.number("rms_norm_eps", 1e-6);
  model.rope_theta = config.number("rope_theta", 10000.0);
  for (const char* key : {"rope_parameters", "rope_scaling"}) read_rope(config, key, model);  // newer releases, older
  config.require(config.word("hidden_act", "silu") == "silu", "hidden_act", "silu");
  config.require(!config.flag("mlp_bias", false), "mlp_bias", "false");
  if (!qwen) config.require(!config.flag("attention_bias", false), "attention_bias", "false");
  if (qwen) config.require(!config.flag("use_sliding_window", false), "use_sliding_window", "false");
  if (qwen) config.require(config.flag("qkv_bias", true), "qkv_bias", "true");
  model.positions = Positions::rope;
  model.norm = NormKind::rms;
  model.bias = qwen ? BiasKind::qkv : BiasKind::none;
  model.tie_embeddings = config.flag("tie_word_embeddings", false);
  if (family == Family::mixtral) read_mixtral(config, model);
  if (family == Family::qwen2_moe) read_qwen2_moe(config, model);
  return model;
}

constexpr std::array kFamilies{Family::gpt2, Family::llama, Family::qwen2, Family::mixtral, Family::qwen2_moe};

// As transformers calls the class that config.json is for.
const char* architecture(Family family) {
  switch (family) {
    case Family::gpt2:
      return "GPT2LMHeadModel";
    case Family::qwen2:
      return "Qwen2ForCausalLM";
    case Family::mixtral:
      return "MixtralForCausalLM";
    case Family::qwen2_moe:
      return "Qwen2MoeForCausalLM";
    case Family::llama:
      break;
  }
  return "LlamaForCausalLM";
}

}  // namespace

const char* family_name(Family family) {
  switch (family) {
    case Family::gpt2:
      return "gpt2";
    case Family::qwen2:
      return "qwen2";
    case Family::mixtral:
      return "mixtral";
    case Family::qwen2_moe:
      return "qwen2_moe";
    case Family::llama:
      break;
  }
  return "llama";
}

ForeignModel read_config(const std::string& text, const std::string& path) {
  const Config config(text, path);
  const std::string type = config.word("model_type", "");
  ForeignModel foreign;
  const auto* family =
      std::find_if(kFamilies.begin(), kFamilies.end(), [&type](Family built) { return type == family_name(built); });
  if (family == kFamilies.end()) {
    std::string built;
    for (const Family one : kFamilies) built += std::string(built.empty() ? "" : ", ") + family_name(one);
    config.refuse("model_type " + (type.empty() ? "is missing" : type + " is not built") + "; built: " + built);
  }
  foreign.family = *family;
  foreign.model = *family == Family::gpt2 ? read_gpt2(config) : read_llama(config, *family);
  ModelDeck& model = foreign.model;
  if (model.kv_heads == 0) model.kv_heads = model.heads;
  if (model.head_dim == 0) {
    if (model.hidden % model.heads != 0) {
      config.refuse("a hidden size of " + std::to_string(model.hidden) + " does not divide into " +
                    std::to_string(model.heads) + " heads");
    }
    model.head_dim = model.hidden / model.heads;
  }
  if (model.heads % model.kv_heads != 0) {
    config.refuse(std::to_string(model.kv_heads) + " KV heads do not divide " + std::to_string(model.heads) + " heads");
  }
  if (model.positions == Positions::rope && model.head_dim % 2 != 0) {
    config.refuse("RoPE turns pairs, and a head has " + std::to_string(model.head_dim) + " elements");
  }
  if (config.has("eos_token_id")) {
    const Json& ids = config.at("eos_token_id");
    const Json& id = ids.is_array() && !ids.empty() ? ids.front() : ids;
    if (id.is_number_unsigned() && id.get<std::uint64_t>() < static_cast<std::uint64_t>(model.vocab)) {
      foreign.end_of_document = static_cast<std::int64_t>(id.get<std::uint64_t>());
    }
  }
  if (!(model.norm_eps > 0) || !(model.rope_theta > 0)) config.refuse("epsilon and rope_theta must be positive");
  return foreign;
}

Family family_of(const ModelDeck& model) {
  const auto refuse = [](const std::string& what) {
    fail_all(ExitCode::input,
             "no Hugging Face family that is built has " + what +
                 "; gpt2: learned positions, layer norm, gelu or gelu_tanh, bias all, tied; llama: rope, rms, "
                 "swiglu, bias none; qwen2: llama with bias qkv; mixtral: llama with experts in every layer; "
                 "qwen2_moe: qwen2 with experts and a gated shared one");
  };
  if (model.kind != ModelKind::transformer) refuse("a model.kind other than transformer");
  if (model.moe && model.positions == Positions::learned) refuse("learned positions with model.moe");
  if (model.positions == Positions::learned) {
    if (model.norm != NormKind::layer) refuse("learned positions with model.norm rms");
    if (model.bias != BiasKind::all) refuse("learned positions without model.bias all");
    if (model.ffn.kind != FeedForwardKind::gelu && model.ffn.kind != FeedForwardKind::gelu_tanh) {
      refuse("learned positions with this model.ffn.kind");
    }
    if (!model.tie_embeddings) refuse("learned positions with an untied head");
    if (model.kv_heads != model.heads) refuse("learned positions with fewer kv_heads");
    if (model.head_dim * model.heads != model.hidden) refuse("learned positions with this head_dim");
    return Family::gpt2;
  }
  if (model.positions != Positions::rope) refuse("model.positions none");
  if (model.norm != NormKind::rms) refuse("rope with model.norm layer");
  if (model.ffn.kind != FeedForwardKind::swiglu) refuse("rope without model.ffn.kind swiglu");
  if (model.bias == BiasKind::all) refuse("rope with model.bias all");
  const bool qwen = model.bias == BiasKind::qkv;
  if (!model.moe) return qwen ? Family::qwen2 : Family::llama;
  if (const std::optional<std::string> stands = no_family_of_experts(model)) refuse(*stands);
  return qwen ? Family::qwen2_moe : Family::mixtral;
}

std::string write_config(Family family, const ModelDeck& model, const std::string& type, std::int64_t end) {
  const Json ending = end >= 0 ? Json(end) : Json();
  Json json;
  if (family == Family::gpt2) {
    json = Json{{"architectures", {architecture(family)}},
                {"model_type", "gpt2"},
                {"vocab_size", model.vocab},
                {"n_positions", model.sequence},
                {"n_ctx", model.sequence},
                {"n_embd", model.hidden},
                {"n_layer", model.layers},
                {"n_head", model.heads},
                {"n_inner", model.ffn.hidden == 4 * model.hidden ? Json() : Json(model.ffn.hidden)},
                {"activation_function", model.ffn.kind == FeedForwardKind::gelu ? "gelu" : "gelu_new"},
                {"layer_norm_epsilon", model.norm_eps},
                {"initializer_range", model.init.std},
                {"resid_pdrop", model.dropout},
                {"embd_pdrop", model.dropout},
                {"attn_pdrop", 0.0}};
  } else {
    const bool qwen = family == Family::qwen2 || family == Family::qwen2_moe;
    json = Json{{"architectures", {architecture(family)}},
                {"model_type", family_name(family)},
                {"vocab_size", model.vocab},
                {"max_position_embeddings", model.sequence},
                {"hidden_size", model.hidden},
                {"intermediate_size", model.ffn.hidden},
                {"num_hidden_layers", model.layers},
                {"num_attention_heads", model.heads},
                {"num_key_value_heads", model.kv_heads},
                {"head_dim", model.head_dim},
                {"hidden_act", "silu"},
                {"rms_norm_eps", model.norm_eps},
                {"rope_theta", model.rope_theta},
                {"rope_scaling", write_rope(model.rope_scaling)},
                {"initializer_range", model.init.std}};
    if (qwen) {
      json["use_sliding_window"] = false;
    } else if (family == Family::llama) {
      json["attention_bias"] = false;
      json["mlp_bias"] = false;
    }
    if (model.moe) write_experts(family, model, json);
  }
  json["tie_word_embeddings"] = model.tie_embeddings;
  json["bos_token_id"] = ending;
  json["eos_token_id"] = ending;
  json["torch_dtype"] = type;
  return json.dump(2) + "\n";
}

std::string write_generation_config(std::int64_t end) {
  const Json ending = end >= 0 ? Json(end) : Json();
  return Json{{"bos_token_id", ending}, {"eos_token_id", ending}}.dump(2) + "\n";
}

}  // namespace fourfold::exchange
