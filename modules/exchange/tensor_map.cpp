#include "exchange/tensor_map.hpp"

#include "model/held.hpp"

namespace fourfold::exchange {

namespace {

using Shape = std::vector<std::int64_t>;

// What a family calls the three matrices of a gated feed-forward layer.
struct GatedNames {
  const char *gate, *up, *down;
};
constexpr GatedNames kProjections{"gate_proj", "up_proj", "down_proj"};
constexpr GatedNames kMixtralNames{"w1", "w3", "w2"};

class Maps {
 public:
  Maps(const ModelDeck& model) : model_(model) {}

  void same(const std::string& ours, const Shape& shape, const std::string& theirs) {
    maps_.push_back({ours, shape, theirs, shape, false, 0});
  }
  // Weight and bias of a layer norm.
  void norm(const std::string& ours, const std::string& theirs) {
    same(ours + ".weight", {model_.hidden}, theirs + ".weight");
    if (model_.norm == NormKind::layer) same(ours + ".bias", {model_.hidden}, theirs + ".bias");
  }
  // GPT-2's Conv1D: the outputs [first, first + out) of `all`, weight in x out.
  void conv(const std::string& ours, std::int64_t out, std::int64_t in, const std::string& theirs, std::int64_t all,
            std::int64_t first) {
    maps_.push_back({ours, {out, in}, theirs, {in, all}, true, first});
  }

  // The rows [first, first + out) of one that holds more of them.
  void rows(const std::string& ours, const Shape& shape, const std::string& theirs, const Shape& their_shape,
            std::int64_t first) {
    maps_.push_back({ours, shape, theirs, their_shape, false, first});
  }
  // A gated feed-forward layer of width f inside.
  void gated(const std::string& ours, std::int64_t f, const std::string& theirs, const GatedNames& names) {
    same(ours + ".gate.weight", {f, model_.hidden}, theirs + "." + names.gate + ".weight");
    same(ours + ".up.weight", {f, model_.hidden}, theirs + "." + names.up + ".weight");
    same(ours + ".down.weight", {model_.hidden, f}, theirs + "." + names.down + ".weight");
  }

  std::vector<TensorMap> maps_;

 private:
  const ModelDeck& model_;
};

void gpt2_layer(Maps& maps, const ModelDeck& model, std::int64_t layer) {
  const std::string ours = "layers." + std::to_string(layer) + ".", theirs = "h." + std::to_string(layer) + ".";
  const std::int64_t d = model.hidden;
  maps.norm(ours + "attention_norm", theirs + "ln_1");
  std::int64_t first = 0;
  for (const char* part : {"q", "k", "v"}) {
    maps.conv(ours + "attention." + part + ".weight", d, d, theirs + "attn.c_attn.weight", 3 * d, first);
    first += d;
  }
  first = 0;
  for (const char* part : {"q", "k", "v"}) {
    maps.rows(ours + "attention." + part + ".bias", {d}, theirs + "attn.c_attn.bias", {3 * d}, first);
    first += d;
  }
  maps.conv(ours + "attention.output.weight", d, d, theirs + "attn.c_proj.weight", d, 0);
  maps.same(ours + "attention.output.bias", {d}, theirs + "attn.c_proj.bias");
  maps.norm(ours + "ffn_norm", theirs + "ln_2");
  const std::int64_t f = model.ffn.hidden;
  maps.conv(ours + "ffn.up.weight", f, d, theirs + "mlp.c_fc.weight", f, 0);
  maps.same(ours + "ffn.up.bias", {f}, theirs + "mlp.c_fc.bias");
  maps.conv(ours + "ffn.down.weight", d, f, theirs + "mlp.c_proj.weight", d, 0);
  maps.same(ours + "ffn.down.bias", {d}, theirs + "mlp.c_proj.bias");
}

// A mixture of experts. Its router is as many rows as there are experts, in their order.
void experts(Maps& maps, Family family, const ModelDeck& model, ExpertLayout layout, const std::string& ours,
             const std::string& theirs) {
  const MoeDeck& moe = *model.moe;
  const std::int64_t d = model.hidden, f = moe.hidden, count = moe.experts;
  const bool mixtral = family == Family::mixtral, stacked = layout == ExpertLayout::stacked;
  const std::string block = theirs + (mixtral && !stacked ? "block_sparse_moe." : "mlp.");
  maps.same(ours + "router.weight", {count, d}, block + "gate.weight");
  const auto expert = [&ours](std::int64_t e) { return ours + "experts." + std::to_string(e); };
  for (std::int64_t e = 0; e < count; ++e) {
    if (stacked) {
      maps.rows(expert(e) + ".gate.weight", {f, d}, block + "experts.gate_up_proj", {count, 2 * f, d}, 2 * f * e);
      maps.rows(expert(e) + ".up.weight", {f, d}, block + "experts.gate_up_proj", {count, 2 * f, d}, 2 * f * e + f);
    } else {
      maps.gated(expert(e), f, block + "experts." + std::to_string(e), mixtral ? kMixtralNames : kProjections);
    }
  }
  for (std::int64_t e = 0; e < count && stacked; ++e) {
    maps.rows(expert(e) + ".down.weight", {d, f}, block + "experts.down_proj", {count, d, f}, d * e);
  }
  if (moe.shared_hidden == 0) return;
  maps.gated(ours + "shared", moe.shared_hidden, block + "shared_expert", kProjections);
  maps.same(ours + "shared_gate.weight", {1, d}, block + "shared_expert_gate.weight");
}

void llama_layer(Maps& maps, Family family, const ModelDeck& model, ExpertLayout layout, std::int64_t layer) {
  const std::string ours = "layers." + std::to_string(layer) + ".";
  const std::string theirs = "model.layers." + std::to_string(layer) + ".";
  const std::int64_t d = model.hidden;
  const std::int64_t q = model.heads * model.head_dim, kv = model.kv_heads * model.head_dim;
  maps.norm(ours + "attention_norm", theirs + "input_layernorm");
  for (const auto& [part, rows] : {std::pair{"q", q}, {"k", kv}, {"v", kv}}) {
    const std::string to = theirs + "self_attn." + part + "_proj";
    maps.same(ours + "attention." + part + ".weight", {rows, d}, to + ".weight");
    if (model.bias == BiasKind::qkv) maps.same(ours + "attention." + part + ".bias", {rows}, to + ".bias");
  }
  maps.same(ours + "attention.output.weight", {d, q}, theirs + "self_attn.o_proj.weight");
  maps.norm(ours + "ffn_norm", theirs + "post_attention_layernorm");
  if (has_experts(model, layer)) {
    experts(maps, family, model, layout, ours + "moe.", theirs);
  } else {
    maps.gated(ours + "ffn", model.ffn.hidden, theirs + "mlp", kProjections);
  }
}

}  // namespace

std::vector<TensorMap> tensor_maps(Family family, const ModelDeck& model, ExpertLayout experts) {
  Maps maps(model);
  const bool gpt2 = family == Family::gpt2;
  maps.same("embedding.token", {model.vocab, model.hidden}, gpt2 ? "wte.weight" : "model.embed_tokens.weight");
  if (gpt2) maps.same("embedding.position", {model.sequence, model.hidden}, "wpe.weight");
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    gpt2 ? gpt2_layer(maps, model, layer) : llama_layer(maps, family, model, experts, layer);
  }
  maps.norm("final_norm", gpt2 ? "ln_f" : "model.norm");
  if (!model.tie_embeddings) maps.same("head.weight", {model.vocab, model.hidden}, "lm_head.weight");
  return std::move(maps.maps_);
}

bool is_no_weight(Family family, const std::string& theirs) {
  if (family == Family::gpt2) return theirs.ends_with(".attn.bias") || theirs.ends_with(".attn.masked_bias");
  return theirs.ends_with(".rotary_emb.inv_freq");
}

}  // namespace fourfold::exchange
