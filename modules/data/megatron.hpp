// Megatron's .idx: what lies where in the .bin beside it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "data/token_type.hpp"

namespace fourfold {

inline constexpr std::int64_t kMegatronHead = 34;  // bytes before the arrays

// A view of an index whose every field was checked.
class MegatronIndex {
 public:
  // `bytes`: the whole index, called `path` in messages; `bin_bytes`: the size of the .bin.
  // Errors (Error, input), with file, byte and value: not an index, the old kind (with advice), another version, a type
  // code that holds no token ids (6 and 7 mean different floats in different forks), a size that does not follow from
  // the counts, lengths below 0, sequences that do not follow one another or do not fill the .bin, a document index
  // that does not run from 0 to the number of sequences, sequences that are images.
  MegatronIndex(std::span<const unsigned char> bytes, const std::string& path, std::int64_t bin_bytes);

  TokenType type() const { return type_; }
  std::int64_t sequences() const { return sequences_; }
  std::int64_t documents() const { return documents_; }
  std::int64_t tokens() const { return tokens_; }
  std::int64_t length(std::int64_t sequence) const;    // tokens
  std::int64_t pointer(std::int64_t sequence) const;   // of its first byte in the .bin
  std::int64_t document(std::int64_t document) const;  // its first sequence; documents(): the number of sequences
  // First token of a document; documents(): the number of tokens.
  std::int64_t document_begin(std::int64_t document) const;
  // The document that token `position` belongs to.
  std::int64_t document_of(std::int64_t position) const;

 private:
  const unsigned char* bytes_;
  TokenType type_ = TokenType::u16;
  std::int64_t sequences_ = 0, documents_ = 0, tokens_ = 0;
};

bool is_megatron_index(std::span<const unsigned char> bytes);      // by its first bytes
bool is_old_megatron_index(std::span<const unsigned char> bytes);  // the kind that is not memory-mapped

}  // namespace fourfold
