// Text to token files, and token files to others: merged, split, in another format.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "deck/deck.hpp"

namespace fourfold {

enum class TokenFormat { megatron, llmc, text };
// What a text file holds: one document, one a line, one a JSON line. Text that is written: documents one after another,
// one a line, one a JSON line.
enum class DocumentsOf { files, lines, jsonl };

struct ConvertOptions {
  std::vector<std::string> inputs;  // paths and globs, text or tokens, in their order
  RawKind raw = RawKind::text;      // of inputs without a known header
  TokenFormat to = TokenFormat::megatron;
  std::string stem;                 // of the output's names
  std::string tokenizer = "bytes";  // of text, read or written: a spec of make_tokenizer
  DocumentsOf documents = DocumentsOf::files;
  std::string json_key = "text";  // of jsonl
  // The id that ends a document in Megatron's files and begins it in llm.c's; without: the tokenizer's.
  std::optional<std::int32_t> end_of_document;
  bool append_end = true;                   // text to Megatron: the id follows each document
  std::optional<std::int64_t> vocab;        // ids are below it; without: the tokenizer's, or what the inputs can hold
  std::int64_t shard_tokens = 100'000'000;  // of llm.c's files
  std::int64_t parts = 1;                   // Megatron pairs of about equal size, from token files
};

struct ConvertReport {
  std::int64_t documents = 0, tokens = 0, text_bytes = 0;
  std::vector<std::string> files;  // written
};

// Text is written to STEM.txt (STEM.jsonl), without the ids that end or begin documents.
// Megatron to Megatron keeps every sequence and document as it is, ends or none. Elsewhere documents of llm.c begin and
// those of bare ids end with the id; the document of a stream that begins otherwise begins there. Memory for one
// document. Errors: Error (input) for inputs, ids that do not fit the output, an output that is there already, options
// that do not go together; Error (storage).
ConvertReport convert_data(const ConvertOptions& options);

}  // namespace fourfold
