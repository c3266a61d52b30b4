// Rules about the model, its data and its numbers.
#include <algorithm>
#include <cmath>
#include <utility>

#include "deck/keys.hpp"
#include "deck/rules.hpp"

namespace fourfold {
namespace {

constexpr std::int64_t kMostWidth = std::int64_t{1} << 22;
constexpr double kMostParameters = 2e17;  // so that 40 bytes each still fit 64 bits

// --- model ---

void head_rules(const Check& check) {
  const ModelDeck& model = check.deck.model;
  if (model.kind != ModelKind::transformer || !check.sound({"model.heads"})) return;
  if (check.sound({"model.hidden", "model.head_dim"}) && model.head_dim == 0) {
    check.add("model.head_dim", "must be given, because model.heads " + number(model.heads) +
                                    " does not divide model.hidden " + number(model.hidden) +
                                    "; heads that do: " + join(divisors(model.hidden)));
  }
  if (check.sound({"model.head_dim"}) && model.heads * model.head_dim > kMostWidth) {
    check.add("model.head_dim", "model.heads x head_dim = " + number(model.heads * model.head_dim) +
                                    " is too wide; legal: up to " + number(kMostWidth / model.heads));
  }
  if (check.sound({"model.head_dim", "model.positions"}) && model.positions == Positions::rope &&
      model.head_dim % 2 != 0) {
    check.add("model.head_dim", number(model.head_dim) +
                                    " must be even for model.positions rope; nearest: " + number(model.head_dim + 1));
  }
  if (check.sound({"model.kv_heads"}) && model.heads % model.kv_heads != 0) {
    check.add("model.kv_heads", number(model.kv_heads) + " must divide model.heads " + number(model.heads) + "; " +
                                    choose(divisors(model.heads), model.kv_heads));
  }
}

void head_split_rules(const Check& check) {
  const ModelDeck& model = check.deck.model;
  const std::int64_t row = check.deck.parallel.dense.row;
  if (model.kind != ModelKind::transformer || !check.sound({"model.heads", "parallel.dense.row"})) return;
  if (model.heads % row != 0) {
    check.add("parallel.dense.row", number(row) + " must divide model.heads " + number(model.heads) + "; " +
                                        choose(divisors(model.heads), row));
  }
  if (check.sound({"model.kv_heads"}) && !kv_heads_fit(model.kv_heads, row)) {
    std::vector<std::int64_t> legal = divisors(model.heads);
    std::erase_if(legal, [row](std::int64_t kv_heads) { return !kv_heads_fit(kv_heads, row); });
    check.add("model.kv_heads", number(model.kv_heads) + " must divide parallel.dense.row " + number(row) +
                                    " or be a multiple of it; " + choose(legal, model.kv_heads));
  }
}

void loss_rule(const Check& check) {
  const ModelDeck& model = check.deck.model;
  if (!check.sound({"model.kind", "model.loss"})) return;
  if (model.kind == ModelKind::transformer && model.loss == LossKind::squared_error) {
    check.add("model.loss",
              "squared_error is for model.kind mlp, residual or embedding; legal for transformer: cross_entropy");
  }
}

// Keys that only some kinds of model look at: a deck that asks for them elsewhere would silently not get them.
struct KindsOfKey {
  const char* path;  // a key, or a block with all its keys
  std::vector<ModelKind> kinds;
};

const std::vector<KindsOfKey>& kinds_of_keys() {
  using enum ModelKind;
  static const std::vector<KindsOfKey> table = {
      {"model.layers", {transformer, residual}},
      {"model.hidden", {transformer, embedding, residual}},
      {"model.heads", {transformer}},
      {"model.kv_heads", {transformer}},
      {"model.head_dim", {transformer}},
      {"model.vocab", {transformer, embedding}},
      {"model.sequence", {transformer, embedding}},
      {"model.positions", {transformer}},
      {"model.rope_theta", {transformer}},
      {"model.rope_scaling", {transformer}},
      {"data.reset_attention", {transformer}},
      {"data.reset_positions", {transformer}},
      {"model.norm", {transformer}},
      {"model.norm_eps", {transformer}},
      {"model.ffn.kind", {transformer}},
      {"model.ffn.hidden", {transformer, residual}},
      {"model.bias", {transformer}},
      {"model.tie_embeddings", {transformer, embedding}},
      {"model.dropout", {transformer, embedding}},
      {"model.init.scale_residual", {transformer, residual}},
      // inputs/all_keys.yaml, a transformer's deck, has every key: it may have widths.
      {"model.widths", {mlp, transformer}},
      {"model.activation", {mlp, residual}},
      {"model.bias_terms", {mlp, residual}},
      {"loss.goldfish", {transformer, embedding}},
      {"parallel.depth_splits", {transformer, embedding}},
      {"parallel.sequence_shard", {transformer, embedding}},
      {"attention.split", {transformer}},
  };
  return table;
}

// The value of the deck is not what a deck without the key has.
bool asks_for(const Check& check, const DeckKey& key) {
  return check.given(key.path) && (!key.fixed_default() || key.get(check.deck) != key.get(Deck{}));
}

void kind_rules(const Check& check) {
  if (!check.sound({"model.kind"})) return;
  const DeckKey& kind = *find_key(deck_keys(), "model.kind");
  const auto index = static_cast<std::size_t>(check.deck.model.kind);
  for (const KindsOfKey& row : kinds_of_keys()) {
    if (std::find(row.kinds.begin(), row.kinds.end(), check.deck.model.kind) != row.kinds.end()) continue;
    std::vector<std::string> kinds;
    for (const ModelKind each : row.kinds) kinds.push_back(kind.choices[static_cast<std::size_t>(each)]);
    const std::string block = std::string(row.path) + ".";
    for (const DeckKey& key : deck_keys()) {
      if ((key.path != row.path && !key.path.starts_with(block)) || !check.sound({key.path.c_str()})) continue;
      if (!asks_for(check, key)) continue;
      check.add(key.path, "has no effect on model.kind " + kind.choices[index] + ", only on " + join(kinds) +
                              "; take it away, or change model.kind");
    }
  }
}

void goldfish_rules(const Check& check) {
  const GoldfishDeck& goldfish = check.deck.loss.goldfish;
  const ModelDeck& model = check.deck.model;
  if (!check.sound({"loss.goldfish.k", "model.kind"}) || goldfish.k == 0) return;
  if (takes_rows(model.kind)) return;  // kind_rules
  if (goldfish.k == 1) {
    check.add("loss.goldfish.k", "1 would leave every target out; legal: 0 (off), 2 or more; nearest: 2");
  }
  if (check.sound({"loss.goldfish.h", "model.sequence"}) && goldfish.h > model.sequence) {
    check.add("loss.goldfish.h", number(goldfish.h) + " must be at most model.sequence " + number(model.sequence) +
                                     "; legal: 1 to " + number(model.sequence) +
                                     "; nearest: " + number(model.sequence));
  }
}

void rope_rules(const Check& check) {
  const ModelDeck& model = check.deck.model;
  const RopeScalingDeck& scaling = model.rope_scaling;
  if (!check.sound({"model.kind", "model.positions", "model.rope_scaling.kind"}) ||
      model.kind != ModelKind::transformer || scaling.kind == RopeScaling::none) {
    return;
  }
  if (model.positions != Positions::rope) {
    check.add("model.rope_scaling.kind", "needs model.positions rope; take it away or change that");
    return;
  }
  if (scaling.kind != RopeScaling::llama3) return;
  if (check.sound({"model.rope_scaling.low", "model.rope_scaling.high"}) && scaling.low >= scaling.high) {
    check.add("model.rope_scaling.low", "must be below model.rope_scaling.high; Llama 3.1 has 1 and 4");
  }
  if (check.sound({"model.rope_scaling.original_sequence"}) && scaling.original_sequence < 1) {
    check.add("model.rope_scaling.kind", "llama3 needs model.rope_scaling.original_sequence; Llama 3.1 has 8192");
  }
}

void size_rule(const Check& check) {
  const ModelDeck& model = check.deck.model;
  const double heads_width = static_cast<double>(model.heads) * static_cast<double>(model.head_dim);
  const double hidden = static_cast<double>(model.hidden);
  const double experts = model.moe ? static_cast<double>(model.moe->experts) : 1.0;
  const std::int64_t inner = model.moe ? std::max(model.moe->hidden, model.ffn.hidden) : model.ffn.hidden;
  const double block = 4 * hidden * heads_width + 3 * experts * hidden * static_cast<double>(inner);
  const double about = static_cast<double>(model.layers) * block + 2 * hidden * static_cast<double>(model.vocab);
  if (model.kind == ModelKind::transformer && about > kMostParameters) {
    check.add("model", "about " + number(std::llround(std::log10(about))) +
                           " decimal digits of parameters; the most that counts of bytes allow is 2e17");
  }
}

// --- data ---

void data_rules(const Check& check) {
  const Deck& deck = check.deck;
  const DataDeck& data = deck.data;
  if (!check.sound({"data.kind", "model.kind"})) return;
  const bool files = data.kind == DataKind::files;
  if (files && takes_rows(deck.model.kind)) {
    const std::string kind = deck.model.kind == ModelKind::mlp ? "mlp" : "residual";
    check.add("data.kind",
              "files hold tokens, and model.kind " + kind + " takes none; legal for " + kind + ": synthetic");
  }
  // Files of other names may hold token ids: what they are is seen when they are opened.
  const auto is_text = [](const std::string& path) { return path.ends_with(".txt"); };
  const bool text = files && data.raw == RawKind::text && std::any_of(data.train.begin(), data.train.end(), is_text);
  if (text && !takes_rows(deck.model.kind) && check.sound({"model.vocab", "data.train", "data.raw"}) &&
      deck.model.vocab < kByteVocab) {
    check.add("model.vocab", number(deck.model.vocab) +
                                 " is too small for text: 256 bytes and the end of a document; "
                                 "legal: 257 or more; nearest: 257");
  }
  const bool teacher = !files && data.synthetic == SyntheticKind::teacher;
  if (teacher && !takes_rows(deck.model.kind) && check.sound({"data.synthetic"})) {
    check.add("data.synthetic", "teacher is for model.kind mlp or residual; legal for tokens: dyadic");
  }
  const bool both = !data.valid.empty() && data.valid_fraction > 0;
  if (files && both && check.sound({"data.valid", "data.valid_fraction"})) {
    check.add("data.valid_fraction", "holds out a part of data.train, but data.valid is given too; take one away");
  }
  if (files && check.sound({"data.weights", "data.train"}) && !data.weights.empty() &&
      data.weights.size() != data.train.size()) {
    check.add("data.weights", number(static_cast<std::int64_t>(data.weights.size())) + " weights for " +
                                  number(static_cast<std::int64_t>(data.train.size())) +
                                  " entries of data.train; give each entry one, or take the key away");
  }
  for (const auto& [key, asked] : {std::pair{"data.mask_document_ends", data.mask_document_ends},
                                   {"data.reset_attention", data.reset_attention},
                                   {"data.reset_positions", data.reset_positions}}) {
    if (check.sound({key, "data.end_of_document"}) && asked && data.end_of_document < 0) {
      check.add(key, "needs data.end_of_document, the id that ends a document: 256 of text, 50256 of GPT-2");
    }
  }
  if (check.sound({"data.end_of_document", "model.vocab"}) && data.end_of_document >= deck.model.vocab &&
      deck.model.vocab > 0) {
    check.add("data.end_of_document", number(data.end_of_document) + " is not below model.vocab " +
                                          number(deck.model.vocab) + "; legal: 0 to " + number(deck.model.vocab - 1));
  }
  const bool validation = files ? !data.valid.empty() || data.valid_fraction > 0 : data.valid_samples > 0;
  if (check.sound({"eval.every", "data.valid", "data.valid_fraction", "data.valid_samples"}) && deck.eval.every > 0 &&
      !validation) {
    check.add("eval.every", number(deck.eval.every) + " needs data to evaluate on; give " +
                                (files ? "data.valid_fraction (such as 0.02) or data.valid" : "data.valid_samples") +
                                ", or type eval.every: 0");
  }
}

// --- numbers ---

void rate_rule(const Check& check) {
  const std::int64_t warmup = check.deck.optimizer.schedule.warmup;
  const std::int64_t steps = check.deck.run.steps;
  if (check.sound({"optimizer.schedule.warmup", "run.steps"}) && warmup > steps) {
    check.add("optimizer.schedule.warmup", number(warmup) + " must be at most run.steps " + number(steps) +
                                               "; legal: 0 to " + number(steps) + "; nearest: " + number(steps));
  }
}

void snap_rule(const Check& check) {
  if (!check.sound({"numerics.snap", "precision.compute"})) return;
  if (check.deck.numerics.snap && check.deck.precision != Precision::fp64) {
    check.add("numerics.snap", "needs precision.compute fp64; type that, or numerics.snap: 0");
  }
}

}  // namespace

void model_rules(const Check& check) {
  head_rules(check);
  head_split_rules(check);
  loss_rule(check);
  kind_rules(check);
  goldfish_rules(check);
  rope_rules(check);
  size_rule(check);
  data_rules(check);
  rate_rule(check);
  snap_rule(check);
}

}  // namespace fourfold
