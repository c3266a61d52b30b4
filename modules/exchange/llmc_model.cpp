#include "exchange/llmc_model.hpp"

#include <array>
#include <bit>
#include <cstring>

#include "base/error.hpp"
#include "exchange/family.hpp"

namespace fourfold::exchange {

namespace {

constexpr std::int32_t kMagic = 20240326;
constexpr std::int64_t kVocabStep = 128;
static_assert(std::endian::native == std::endian::little, "numbers are stored as they lie in memory");

std::int32_t number_at(std::span<const unsigned char> head, std::size_t index) {
  std::int32_t value = 0;
  std::memcpy(&value, head.data() + 4 * index, 4);
  return value;
}

std::int64_t elements(const ModelDeck& model, std::int64_t padded_vocab) {
  const auto with_layers = [&](std::int64_t layers) {
    ModelDeck part = model;
    part.layers = layers;
    std::int64_t all = 0;
    for (const LlmcTensor& tensor : llmc_tensors(part)) {
      std::int64_t size = 1;
      for (const std::int64_t extent : tensor.shape) size *= extent;
      all += size;
    }
    return all;
  };
  // Layers are alike: a head that claims thousands of them takes no longer.
  const std::int64_t none = with_layers(0);
  return (padded_vocab - model.vocab) * model.hidden + none + model.layers * (with_layers(1) - none);
}

}  // namespace

bool is_llmc_model(std::span<const unsigned char> bytes) {
  return bytes.size() >= 4 && number_at(bytes, 0) == kMagic;
}

LlmcModel parse_llmc_model(std::span<const unsigned char> head, std::int64_t file_bytes, const std::string& path) {
  const auto refuse = [&](std::size_t index, const std::string& what) {
    fail_all(ExitCode::input, path + ": llm.c, byte " + std::to_string(4 * index) + ": " + what);
  };
  if (!is_llmc_model(head)) refuse(0, "no model of llm.c");
  if (std::ssize(head) < kLlmcModelHead) refuse(0, "ends inside its head of 1024 bytes");
  const std::int32_t version = number_at(head, 1);
  if (version != 3 && version != 5) {
    refuse(1, "version " + std::to_string(version) +
                  " of a model's weights; known: 3 (fp32) and 5 (bf16); older files of llm.c have other layouts");
  }
  LlmcModel file;
  file.type = version == 3 ? Number::f32 : Number::bf16;
  ModelDeck& model = file.model;
  constexpr std::array kNames{"maximum sequence", "vocabulary", "layers", "heads", "channels", "padded vocabulary"};
  const std::array fields{&model.sequence, &model.vocab,  &model.layers,
                          &model.heads,    &model.hidden, &file.padded_vocab};
  for (std::size_t i = 0; i < fields.size(); ++i) {
    *fields[i] = number_at(head, 2 + i);
    constexpr std::int32_t kMost = 1 << 22;  // counts of elements stay far below 2^63
    if (*fields[i] < 1 || *fields[i] > kMost) {
      refuse(2 + i, std::string("a ") + kNames[i] + " of " + std::to_string(*fields[i]) + "; legal: 1 to " +
                        std::to_string(kMost));
    }
  }
  constexpr std::int64_t kMostLayers = 10000;
  if (model.layers > kMostLayers) refuse(4, std::to_string(model.layers) + " layers; legal: 1 to 10000");
  if (model.hidden % model.heads != 0) {
    refuse(5, std::to_string(model.heads) + " heads do not divide " + std::to_string(model.hidden) + " channels");
  }
  if (file.padded_vocab < model.vocab) {
    refuse(7, "a padded vocabulary of " + std::to_string(file.padded_vocab) + " below the vocabulary of " +
                  std::to_string(model.vocab));
  }
  model.kv_heads = model.heads;
  model.head_dim = model.hidden / model.heads;
  model.ffn = {FeedForwardKind::gelu_tanh, 4 * model.hidden};
  model.positions = Positions::learned;
  model.norm = NormKind::layer;
  model.bias = BiasKind::all;
  model.tie_embeddings = true;
  const std::int64_t count = elements(model, file.padded_vocab);
  const std::int64_t expected = kLlmcModelHead + count * number_bytes(file.type);
  if (file_bytes != expected) {
    refuse(2, std::to_string(count) + " parameters of " + number_name(file.type) + " make a file of " +
                  std::to_string(expected) + " bytes, this one has " + std::to_string(file_bytes));
  }
  return file;
}

std::int64_t llmc_padded_vocab(const ModelDeck& model) {
  return (model.vocab + kVocabStep - 1) / kVocabStep * kVocabStep;
}

std::vector<unsigned char> write_llmc_head(const ModelDeck& model, Number type) {
  const auto require = [](bool built, const std::string& key) {
    if (!built) fail_all(ExitCode::input, "llm.c's model files do not have this " + key);
  };
  require(family_of(model) == Family::gpt2, "model; they hold GPT-2 (learned positions)");
  require(model.ffn.kind == FeedForwardKind::gelu_tanh, "model.ffn.kind; they hold gelu_tanh");
  require(model.ffn.hidden == 4 * model.hidden, "model.ffn.hidden; they hold 4 x model.hidden");
  require(model.norm_eps == 1e-5, "model.norm_eps; they hold 1e-5");
  if (type != Number::f32 && type != Number::bf16) {
    fail_all(ExitCode::input,
             std::string("llm.c's model files do not hold ") + number_name(type) + "; type --type F32 or BF16");
  }
  std::vector<unsigned char> head(static_cast<std::size_t>(kLlmcModelHead));
  const std::array<std::int64_t, 8> values{
      kMagic,       type == Number::f32 ? 3 : 5, model.sequence, model.vocab, model.layers, model.heads,
      model.hidden, llmc_padded_vocab(model)};
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto value = static_cast<std::int32_t>(values[i]);
    std::memcpy(head.data() + 4 * i, &value, 4);
  }
  return head;
}

std::vector<LlmcTensor> llmc_tensors(const ModelDeck& model) {
  const std::int64_t d = model.hidden, f = model.ffn.hidden;
  std::vector<LlmcTensor> list{{"embedding.token", {model.vocab, d}}, {"embedding.position", {model.sequence, d}}};
  const auto of_layers = [&](const std::vector<LlmcTensor>& parts) {
    for (std::int64_t layer = 0; layer < model.layers; ++layer) {
      for (const LlmcTensor& part : parts) {
        list.push_back({"layers." + std::to_string(layer) + "." + part.ours, part.shape});
      }
    }
  };
  of_layers({{"attention_norm.weight", {d}}});
  of_layers({{"attention_norm.bias", {d}}});
  of_layers({{"attention.q.weight", {d, d}}, {"attention.k.weight", {d, d}}, {"attention.v.weight", {d, d}}});
  of_layers({{"attention.q.bias", {d}}, {"attention.k.bias", {d}}, {"attention.v.bias", {d}}});
  of_layers({{"attention.output.weight", {d, d}}});
  of_layers({{"attention.output.bias", {d}}});
  of_layers({{"ffn_norm.weight", {d}}});
  of_layers({{"ffn_norm.bias", {d}}});
  of_layers({{"ffn.up.weight", {f, d}}});
  of_layers({{"ffn.up.bias", {f}}});
  of_layers({{"ffn.down.weight", {d, f}}});
  of_layers({{"ffn.down.bias", {d}}});
  list.push_back({"final_norm.weight", {d}});
  list.push_back({"final_norm.bias", {d}});
  return list;
}

}  // namespace fourfold::exchange
