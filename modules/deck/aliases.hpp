// Names of other programs: what a user of Megatron-LM, torchtitan, DeepSpeed or Hugging Face types, and the key that
// says it here. For messages only: no such name is read. README has the table, and a test compares the two.
#pragma once

#include <span>
#include <string>

namespace fourfold {

struct Alias {
  const char* name;     // "tensor_model_parallel_size"; with a block ("parallel.tp") where it means nothing without
  const char* program;  // "Megatron-LM"
  const char* key;      // "parallel.dense.row"
  const char* note;     // what else to know or type; "" for nothing
};
std::span<const Alias> aliases();

// "; Megatron-LM's num_layers is model.layers here" for a key that is unknown where it stands; "" if no program has it.
std::string alias_help(const std::string& path);

// Of a value that the choices of `key` do not have: "; there is no fp16 ...; type bf16"; "" for most.
std::string value_help(const std::string& key, const std::string& value);

}  // namespace fourfold
