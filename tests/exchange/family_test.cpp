// What config.json says of a model, both ways, and what has no name there.
#include "exchange/family.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "base/error.hpp"
#include "exchange/llmc_model.hpp"
#include "exchange/tensor_map.hpp"

namespace fourfold::exchange {
namespace {

ModelDeck model_of(Family family) {
  ModelDeck model;
  model.layers = 4;
  model.hidden = 32;
  model.heads = model.kv_heads = 4;
  model.head_dim = 8;
  model.vocab = 101;
  model.sequence = 24;
  if (family == Family::gpt2) {
    model.positions = Positions::learned;
    model.norm = NormKind::layer;
    model.bias = BiasKind::all;
    model.ffn = {FeedForwardKind::gelu_tanh, 128};
    model.tie_embeddings = true;
    return model;
  }
  model.kv_heads = 2;
  model.head_dim = 12;
  model.rope_theta = 5e5;
  model.ffn = {FeedForwardKind::swiglu, 40};
  if (family == Family::qwen2 || family == Family::qwen2_moe) model.bias = BiasKind::qkv;
  if (family != Family::mixtral && family != Family::qwen2_moe) return model;
  MoeDeck& moe = model.moe.emplace();
  moe.experts = 6;
  moe.top_k = 3;
  moe.hidden = 40;
  moe.balance.aux = 0.01;
  if (family == Family::mixtral) {
    moe.jitter = 0.125;
  } else {
    moe.hidden = 20;
    moe.every = 2;
    moe.shared_hidden = 28;
    moe.shared_gate = true;
    moe.renormalize = false;
  }
  return model;
}

constexpr std::array kAll{Family::gpt2, Family::llama, Family::qwen2, Family::mixtral, Family::qwen2_moe};

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::input);
    return error.what();
  }
  return "no error";
}

TEST(Family, AConfigThatIsWrittenSaysTheSameModel) {
  for (const Family family : kAll) {
    const ModelDeck model = model_of(family);
    EXPECT_EQ(family_of(model), family) << family_name(family);
    const ForeignModel read = read_config(write_config(family, model, "float32", 7), "config.json");
    EXPECT_EQ(read.family, family);
    EXPECT_EQ(read.model, model) << family_name(family);
    EXPECT_EQ(read.end_of_document, 7);
  }
}

TEST(Family, EveryTensorOfOursIsOneOfTheirs) {
  for (const Family family : kAll) {
    for (const ExpertLayout layout : {ExpertLayout::each, ExpertLayout::stacked}) {
      std::map<std::string, std::int64_t> filled, wanted;
      for (const TensorMap& map : tensor_maps(family, model_of(family), layout)) {
        std::int64_t theirs = 1, ours = 1;
        for (const std::int64_t extent : map.their_shape) theirs *= extent;
        for (const std::int64_t extent : map.shape) ours *= extent;
        // Parts of one of theirs come in its order, or the writer would have to hold them.
        if (!map.transposed) {
          const std::int64_t columns = map.shape.size() > 1 ? map.shape[1] : 1;
          EXPECT_EQ(filled[map.theirs], map.first * columns) << map.ours << " in " << map.theirs;
        }
        filled[map.theirs] += ours;
        wanted[map.theirs] = theirs;
      }
      EXPECT_EQ(filled, wanted) << family_name(family);
    }
  }
}

// `changes` stand before the others: the first of a name counts in neither reader, so they replace them.
std::string refusal(Family family, const std::string& key, const std::string& value) {
  std::string text = write_config(family, model_of(family), "float32", 7);
  const std::size_t at = text.find("\"" + key + "\":");
  if (at != std::string::npos) {
    std::size_t end = text.find_first_of(",[", at);
    if (text[end] == '[') end = text.find(']', at) + 1;
    text.erase(at, std::min(end, text.rfind('\n', text.size() - 3)) - at + (text[end] == ',' ? 1 : 0));
  }
  text.insert(text.find('{') + 1, "\"" + key + "\": " + value + ",");
  return message_of([&text] { read_config(text, "c.json"); });
}

TEST(Family, ConfigsOfExpertsThatAreNotBuiltAreRefusedByTheirKey) {
  struct Case {
    Family family;
    const char *key, *value, *message;
  };
  const Family mixtral = Family::mixtral, qwen = Family::qwen2_moe;
  for (const Case& tested : std::vector<Case>{
           {mixtral, "sliding_window", "16", "sliding_window 16 is not built; built: null, or max_position_embeddings"},
           {mixtral, "sliding_window", "24", "no error"},
           {mixtral, "num_local_experts", "0", "num_local_experts must be a whole number of 1 or more, not 0"},
           {mixtral, "num_local_experts", "null", "num_local_experts is missing"},
           {mixtral, "num_local_experts", "65537", "num_local_experts 65537 in 4 layers; at most 65536 in a layer"},
           {mixtral, "num_hidden_layers", "10001", "num_hidden_layers 10001; legal: 1 to 10000"},
           {mixtral, "num_experts_per_tok", "7", "num_experts_per_tok 7 is more than num_local_experts 6"},
           {mixtral, "router_jitter_noise", "1.5", "router_jitter_noise must be from 0 to below 1"},
           {mixtral, "router_aux_loss_coef", "-1.0", "router_aux_loss_coef must be 0 or more"},
           {mixtral, "attention_bias", "true", "attention_bias true is not built; built: false"},
           {qwen, "mlp_only_layers", "[3]", "mlp_only_layers [3] is not built; built: experts in the last of every n"},
           {qwen, "mlp_only_layers", "[0, 2]", "no error"},
           {qwen, "mlp_only_layers", "[4]", "mlp_only_layers names 4 of 4 layers"},
           {qwen, "mlp_only_layers", "3", "mlp_only_layers must be a list, not 3"},
           {qwen, "decoder_sparse_step", "5", "decoder_sparse_step 5 is not built"},
           {qwen, "decoder_sparse_step", "0", "decoder_sparse_step must be a whole number of 1 or more, not 0"},
           {qwen, "qkv_bias", "false", "qkv_bias false is not built; built: true"},
           {qwen, "use_sliding_window", "true", "use_sliding_window true is not built"},
           {qwen, "shared_expert_intermediate_size", "null", "shared_expert_intermediate_size is missing"},
           {qwen, "moe_intermediate_size", "null", "moe_intermediate_size is missing"},
           {qwen, "norm_topk_prob", "1", "norm_topk_prob must be true or false, not 1"},
           {qwen, "hidden_act", "\"gelu\"", "hidden_act \"gelu\" is not built; built: silu"}}) {
    const std::string said = refusal(tested.family, tested.key, tested.value);
    EXPECT_NE(said.find(tested.message), std::string::npos) << tested.key << " " << tested.value << ": " << said;
  }
}

TEST(Family, ExpertsThatNoFamilyHasAreRefusedByTheirKey) {
  struct Case {
    Family family;
    std::function<void(ModelDeck&)> change;
    const char* message;
  };
  const Family mixtral = Family::mixtral, qwen = Family::qwen2_moe;
  for (const Case& tested : std::vector<Case>{
           {mixtral, [](ModelDeck& m) { m.moe->score = ScoreKind::sigmoid; }, "model.moe.score sigmoid"},
           {mixtral, [](ModelDeck& m) { m.moe->renormalize = false; }, "model.moe.renormalize false"},
           {mixtral, [](ModelDeck& m) { m.moe->groups = 2; }, "model.moe.groups 2"},
           {mixtral, [](ModelDeck& m) { m.moe->every = 2; }, "model.moe.every 2 without a shared expert"},
           {mixtral, [](ModelDeck& m) { m.moe->capacity.factor = 1; }, "model.moe.capacity.factor"},
           {mixtral, [](ModelDeck& m) { m.moe->balance.bias_rate = 1; }, "model.moe.balance.bias_rate"},
           {mixtral, [](ModelDeck& m) { m.moe->forced.routing = ForcedRoutingKind::zipf; }, "model.moe.forced"},
           {mixtral, [](ModelDeck& m) { m.moe->shared_hidden = 8; }, "model.moe.shared_hidden without model.bias qkv"},
           {mixtral, [](ModelDeck& m) { m.positions = Positions::learned; }, "learned positions with model.moe"},
           {mixtral, [](ModelDeck& m) { m.norm = NormKind::layer; }, "rope with model.norm layer"},
           {mixtral, [](ModelDeck& m) { m.ffn.kind = FeedForwardKind::gelu; }, "rope without model.ffn.kind swiglu"},
           {qwen, [](ModelDeck& m) { m.moe->shared_gate = false; }, "without model.moe.shared_gate"},
           {qwen, [](ModelDeck& m) { m.moe->shared_hidden = 0; }, "qkv without model.moe.shared_hidden"}}) {
    ModelDeck model = model_of(tested.family);
    tested.change(model);
    const std::string said = message_of([&model] { family_of(model); });
    EXPECT_NE(said.find("no Hugging Face family that is built has"), std::string::npos) << said;
    EXPECT_NE(said.find(tested.message), std::string::npos) << said;
  }
}

}  // namespace
}  // namespace fourfold::exchange
