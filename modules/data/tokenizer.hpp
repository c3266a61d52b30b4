// Text to token ids and back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fourfold {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  // Errors (Error, input): an id that the vocabulary does not have.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
  virtual std::int64_t vocab() const = 0;  // ids are below it
  virtual bool knows(std::int32_t id) const { return id >= 0 && id < vocab(); }
  virtual std::optional<std::int32_t> end_of_document() const = 0;
};

// `spec`: "bytes" (ids 0 to 255, 256 ends a document); a tokenizer.json with byte-level BPE; a vocab.json with
// merges.txt beside it; a folder that holds either; a SentencePiece model (*.model).
// Errors (Error, input): what cannot be read or is of a kind that is not built, with the file and the reason.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& spec);

// A SentencePiece model. Errors (Error, input): also where the program was built without the library.
std::unique_ptr<Tokenizer> open_sentencepiece(const std::string& path);

}  // namespace fourfold
