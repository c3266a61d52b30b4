#include "targets.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/error.hpp"
#include "checkpoint/safetensors.hpp"
#include "data/byte_bpe.hpp"
#include "data/llmc.hpp"
#include "data/megatron.hpp"
#include "exchange/family.hpp"
#include "exchange/llmc_model.hpp"

namespace fourfold::fuzz {

namespace {

void require(bool truth, const char* what) {
  if (truth) return;
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

template <class Body>
bool taken(Body body, bool told_by_byte = true) {
  try {
    body();
    return true;
  } catch (const Error& error) {
    const std::string message = error.what();
    require(error.code() == ExitCode::input, "an error that is not the input's");
    require(message.find("a.file") == 0, "a message that does not begin with the file");
    require(!told_by_byte || message.find("byte ") != std::string::npos, "a message without an offset");
    return false;
  }
}

bool safetensors_header(std::span<const unsigned char> bytes) {
  const std::int64_t size = static_cast<std::int64_t>(bytes.size());
  return taken([&] {
    const safetensors::Header header = safetensors::parse_header(bytes, size, "a.file");
    std::int64_t at = 0;
    for (const safetensors::Tensor& tensor : header.tensors) {
      require(tensor.begin == at && tensor.end >= at, "tensors that do not follow one another");
      require(tensor.elements() * tensor.type->bits == 8 * tensor.bytes(), "a tensor of another size");
      at = tensor.end;
    }
    require(header.data_begin + at == size, "tensors that do not fill the file");
  });
}

constexpr std::int64_t kBinBytes = 18;  // of the golden pair

bool megatron_index(std::span<const unsigned char> bytes) {
  return taken([&] {
    const MegatronIndex index(bytes, "a.file", kBinBytes);
    require(index.tokens() * token_bytes(index.type()) == kBinBytes, "tokens that do not fill the .bin");
    for (std::int64_t token = 0; token < index.tokens() && index.documents() > 0; ++token) {
      const std::int64_t document = index.document_of(token);
      require(document >= 0 && document < index.documents(), "a token of no document");
      require(index.document_begin(document) <= token && token < index.document_begin(document + 1),
              "a token of another document");
    }
  });
}

bool llmc_tokens(std::span<const unsigned char> bytes) {
  const std::int64_t size = static_cast<std::int64_t>(bytes.size());
  return taken([&] {
    const LlmcTokens header = parse_llmc_tokens(bytes, size, "a.file");
    require(kLlmcHead + header.tokens * token_bytes(header.type) == size, "tokens that do not fill the file");
  });
}

bool tokenizer_json(std::span<const unsigned char> bytes) {
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return taken(
      [&] {
        const ByteBpe bpe(parse_tokenizer_json(text, "a.file"), "a.file");
        require(bpe.vocab() > 0, "a vocabulary without tokens");
      },
      false);
}

bool llmc_model(std::span<const unsigned char> bytes) {
  return taken([&] {
    const auto size = static_cast<std::int64_t>(bytes.size());
    const std::span<const unsigned char> head = bytes.first(std::min<std::size_t>(bytes.size(), 1024));
    const exchange::LlmcModel file = exchange::parse_llmc_model(head, size, "a.file");
    require(file.padded_vocab >= file.model.vocab, "rows below none");
    require(std::ssize(exchange::llmc_tensors(file.model)) == 4 + 16 * file.model.layers, "another number of tensors");
  });
}

bool model_config(std::span<const unsigned char> bytes) {
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return taken(
      [&] {
        const exchange::ForeignModel foreign = exchange::read_config(text, "a.file");
        const ModelDeck& model = foreign.model;
        require(model.layers > 0 && model.heads % model.kv_heads == 0, "heads that do not divide");
        require(!model.moe || (model.moe->top_k <= model.moe->experts && model.moe->every <= model.layers),
                "a choice of more experts than there are");
        require(foreign.end_of_document < model.vocab, "an end beyond the vocabulary");
      },
      false);
}

template <class Number>
void put(std::string& bytes, Number number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

std::string safetensors_file(const std::string& header, std::size_t data) {
  std::string file;
  put(file, static_cast<std::uint64_t>(header.size()));
  return file + header + std::string(data, 'd');
}

std::vector<std::string> safetensors_seeds() {
  return {safetensors_file(R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
                           R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[16,20]}})",
                           20),
          safetensors_file(R"({"h.0.\u00e9\"":{"dtype":"F4","shape":[2,0],"data_offsets":[0,0]},)"
                           R"("s":{"dtype":"I64","shape":[],"data_offsets":[0,8]}}   )",
                           8),
          safetensors_file("{}", 0)};
}

std::vector<std::string> megatron_seeds() {
  std::vector<std::string> seeds;
  for (const bool modes : {false, true}) {
    std::string index("MMIDIDX\0\0", 9);
    put(index, std::uint64_t{1});
    put(index, std::uint8_t{8});
    put(index, std::uint64_t{3});
    put(index, std::uint64_t{4});
    for (const std::int32_t length : {3, 2, 4}) put(index, length);
    for (const std::int64_t pointer : {0, 6, 10}) put(index, pointer);
    for (const std::int64_t document : {0, 1, 2, 3}) put(index, document);
    if (modes) index += std::string(3, '\0');
    seeds.push_back(index);
  }
  return seeds;
}

std::vector<std::string> llmc_seeds() {
  std::vector<std::string> seeds;
  for (const bool llama : {false, true}) {
    std::string file;
    for (const std::int32_t number : {llama ? kLlmcLlama3Tokens : kLlmcGpt2Tokens, llama ? 7 : 1, 4}) put(file, number);
    file.resize(llama ? 1040 : 1032, '\0');
    seeds.push_back(file);
  }
  return seeds;
}

std::vector<std::string> llmc_model_seeds() {
  std::vector<std::string> seeds;
  for (const bool bf16 : {false, true}) {
    // Sequence, vocabulary, layers, heads, channels, padded vocabulary: 36 elements of 4 bytes, or 72 of 2.
    std::string file;
    for (const std::int32_t number : {20240326, bf16 ? 5 : 3, 4, 5, bf16 ? 2 : 1, 1, 1, bf16 ? 16 : 5})
      put(file, number);
    file.resize(1024 + 144, '\0');
    seeds.push_back(file);
  }
  return seeds;
}

std::vector<std::string> config_seeds() {
  return {
      R"({"model_type":"gpt2","vocab_size":101,"n_positions":24,"n_embd":32,"n_layer":2,"n_head":4,"n_inner":null,)"
      R"("activation_function":"gelu_new","layer_norm_epsilon":1e-5,"eos_token_id":100})",
      R"({"model_type":"llama","vocab_size":101,"max_position_embeddings":24,"hidden_size":32,"intermediate_size":40,)"
      R"("num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"rope_theta":5e5,"rope_scaling":)"
      R"({"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,)"
      R"("original_max_position_embeddings":64},"eos_token_id":[2,3]})",
      R"({"model_type":"mixtral","vocab_size":101,"max_position_embeddings":24,"hidden_size":32,"intermediate_size":40,)"
      R"("num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"num_local_experts":6,)"
      R"("num_experts_per_tok":2,"router_aux_loss_coef":0.02,"output_router_logits":true,"sliding_window":null})",
      R"({"model_type":"qwen2_moe","vocab_size":101,"hidden_size":32,"intermediate_size":40,"num_hidden_layers":4,)"
      R"("num_attention_heads":4,"num_experts":6,"num_experts_per_tok":2,"moe_intermediate_size":8,)"
      R"("shared_expert_intermediate_size":9,"norm_topk_prob":false,"decoder_sparse_step":2,"mlp_only_layers":[0]})"};
}

std::vector<std::string> tokenizer_seeds() {
  const std::string begin = R"({"added_tokens":[{"id":4,"content":"<|endoftext|>","special":true,"lstrip":false}],)";
  const std::string model =
      R"("model":{"type":"BPE","dropout":null,"vocab":{"a":0,"b":1,"ab":2,"\u0120a":3,"\u0120":5},"merges":["a b",["\u0120","a"]]}})";
  return {begin + R"("normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":true},)" + model,
          begin +
              R"("normalizer":{"type":"NFC"},"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split",)"
              R"("pattern":{"Regex":"\\p{L}+|\\s"},"behavior":"Isolated","invert":false},)"
              R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]},)" +
              model};
}

}  // namespace

const std::vector<Target>& targets() {
  static const std::vector<Target> all{{"safetensors", safetensors_header, safetensors_seeds},
                                       {"megatron", megatron_index, megatron_seeds},
                                       {"llmc", llmc_tokens, llmc_seeds},
                                       {"tokenizer", tokenizer_json, tokenizer_seeds},
                                       {"llmc_model", llmc_model, llmc_model_seeds},
                                       {"config", model_config, config_seeds}};
  return all;
}

}  // namespace fourfold::fuzz
