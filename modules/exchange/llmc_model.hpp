// Model files of llm.c (GPT-2, model_00000010.bin): a head of 256 numbers, then all weights kind by kind, each kind of
// all layers together; matrices out x in, the embedding with rows of zeros up to a padded vocabulary.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "exchange/numbers.hpp"

namespace fourfold::exchange {

inline constexpr std::int64_t kLlmcModelHead = 1024;  // bytes

struct LlmcModel {
  ModelDeck model;
  std::int64_t padded_vocab = 0;
  Number type = Number::f32;  // version 3; bf16: version 5
};

bool is_llmc_model(std::span<const unsigned char> bytes);  // the first ones

// From the head of a file of `file_bytes` bytes. Errors (Error, input), with file and byte: another version (an older
// one of llm.c had other types and orders), sizes that make no GPT-2, a file of another length.
LlmcModel parse_llmc_model(std::span<const unsigned char> head, std::int64_t file_bytes, const std::string& path);

// The head of such a file. Errors (Error, input): a model or type that llm.c's files do not have, by the key.
std::vector<unsigned char> write_llmc_head(const ModelDeck& model, Number type);
std::int64_t llmc_padded_vocab(const ModelDeck& model);  // the next multiple of 128

// Our tensors in the order of the file. Behind the first come the rows that pad the vocabulary.
struct LlmcTensor {
  std::string ours;
  std::vector<std::int64_t> shape;
};
std::vector<LlmcTensor> llmc_tensors(const ModelDeck& model);

}  // namespace fourfold::exchange
