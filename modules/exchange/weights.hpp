// Weights of Hugging Face folders and llm.c to checkpoints, and back. Memory holds a tensor at most: what becomes a
// checkpoint waits in a file without a name, beside it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "comm/communicator.hpp"
#include "deck/deck.hpp"
#include "exchange/family.hpp"
#include "exchange/numbers.hpp"
#include "exchange/tensor_map.hpp"

namespace fourfold::exchange {

struct ExchangeReport {
  Family family = Family::gpt2;
  std::int64_t tensors = 0, elements = 0;
  std::string path;  // what was written: the checkpoint, or the folder
};

// Whether this is what import_weights() reads: a folder with a config.json, or a model file of llm.c.
bool is_foreign(const std::string& source);

// A Hugging Face folder (its tokenizer is copied to RUN_FOLDER/tokenizer) or a model file of llm.c becomes
// RUN_FOLDER/checkpoints/step_00000000.h5, committed, and RUN_FOLDER/deck.yaml, whose data are a place-holder. `world`
// has one rank. Errors (all ranks): input for a config or files that do not fit, names that are missing or unexpected
// (both are listed), shapes, types; storage.
ExchangeReport import_weights(const Communicator& world, const std::string& source, const std::string& run_folder,
                              Precision precision, const std::string& version);

enum class WeightFormat { huggingface, llmc };

struct ExportOptions {
  WeightFormat to = WeightFormat::huggingface;
  std::optional<Number> type;  // without it: the one that was imported, else the stored one
  std::int64_t shard_bytes = 5'000'000'000;
  ExpertLayout experts = ExpertLayout::each;
};

// A committed checkpoint (a step_N.h5, or the newest of a run's folder), its checksums verified: a folder of
// safetensors with config.json and generation_config.json (and the tokenizer that its deck names), or a model file of
// llm.c. No MPI. Errors: input for a model that no family has; storage.
ExchangeReport export_weights(const std::string& checkpoint, const std::string& output, const ExportOptions& options);

}  // namespace fourfold::exchange
