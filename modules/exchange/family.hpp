// Families of Hugging Face models, and what their config.json says as a model of a deck.
#pragma once

#include <cstdint>
#include <string>

#include "deck/deck.hpp"

namespace fourfold::exchange {

enum class Family { gpt2, llama, qwen2, mixtral, qwen2_moe };
const char* family_name(Family family);  // config.json's model_type

struct ForeignModel {
  Family family = Family::gpt2;
  ModelDeck model;
  std::int64_t end_of_document = -1;  // eos_token_id; of a list the first; -1: none
};

// From the text of a config.json, which is called `path` in messages. Errors (Error, input): a family that is not
// built, by its name; settings that change the numbers and are not built (yarn and other RoPE, another activation,
// windows of attention, layers with experts that are not every n-th, ...), by their key; sizes that are missing or do
// not fit.
ForeignModel read_config(const std::string& text, const std::string& path);

// The family that has this model. Errors (Error, input): none has, by the key that stands in the way. So for a router
// that chose or weighted experts otherwise in training than the family does.
Family family_of(const ModelDeck& model);

// config.json of this model; `type` is "float32", "bfloat16" or "float16". With `end_of_document` >= 0 as eos_token_id.
std::string write_config(Family family, const ModelDeck& model, const std::string& type, std::int64_t end_of_document);
// generation_config.json, of the same.
std::string write_generation_config(std::int64_t end_of_document);

}  // namespace fourfold::exchange
