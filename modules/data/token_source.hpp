// A stream of tokens: documents one after another, each ended by its end-of-document token.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace fourfold {

// Where a token stands, for messages. Documents and positions count from 0.
struct TokenPlace {
  std::string file;
  std::int64_t document = 0;  // in the file
  std::int64_t position = 0;  // in the document
  std::int64_t offset = 0;    // byte of the file; a document's end that no byte stands for: the file's size
  std::int64_t id = 0;        // what is stored there
};

class TokenSource {
 public:
  virtual ~TokenSource() = default;

  virtual std::int64_t size() const = 0;        // tokens; at least one
  virtual std::int32_t largest_id() const = 0;  // no id of the stream is above it
  virtual std::string describe() const = 0;     // one line a file: name, size, count (for the fingerprint)
  virtual bool is_text() const = 0;             // tokens are the bytes of text; bytes() is 0 where they are not
  virtual std::int64_t bytes(std::int64_t begin, std::int64_t end) const = 0;  // of text that tokens [begin, end) spell
  virtual TokenPlace place(std::int64_t position) const = 0;
  // Tokens [first, first + ids.size()); they must lie in the stream.
  virtual void read(std::int64_t first, std::span<std::int32_t> ids) const = 0;
};

// Errors (Error, input): an id that is not in [0, vocab), with file, document, position, id and limit. Reads the stream
// only where largest_id() does not settle it; of a large stream (over kSharedScan tokens) only part `part` of `parts`.
inline constexpr std::int64_t kSharedScan = std::int64_t{1} << 26;
void require_ids_below(const TokenSource& source, std::int64_t vocab, int part = 0, int parts = 1);

}  // namespace fourfold
