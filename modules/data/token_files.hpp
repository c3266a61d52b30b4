// Files of tokens of any known kind, told apart by what is in them, as one stream.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/token_source.hpp"
#include "deck/deck.hpp"

namespace fourfold {

// The files as one stream, in their order. A file is, by its first bytes:
//   Megatron   X.bin with X.idx beside it, named by either or as X; a pair that a glob finds twice counts once
//   llm.c      a shard of tokens of GPT-2 or Llama 3
//   else       what `raw` (data.raw) says: text, each file a document, or bare ids of 16 or 32 bits (nanoGPT)
// `key` ("data.train") names the list in messages. Errors (Error, input), every file's in one go: those of the kinds;
// files that are compressed, or of a kind that holds no tokens; ids that look like text or the other way round.
std::shared_ptr<const TokenSource> open_token_files(const std::vector<std::string>& files, RawKind raw,
                                                    const std::string& key);

// The same, file by file.
std::vector<std::unique_ptr<TokenSource>> open_token_parts(const std::vector<std::string>& files, RawKind raw,
                                                           const std::string& key);

// Streams one after another, as one.
class JoinedTokens : public TokenSource {
 public:
  explicit JoinedTokens(std::vector<std::unique_ptr<TokenSource>> parts);

  std::int64_t size() const override { return first_.back(); }
  std::int32_t largest_id() const override;
  std::string describe() const override;
  bool is_text() const override;  // all parts are
  std::int64_t bytes(std::int64_t begin, std::int64_t end) const override;
  TokenPlace place(std::int64_t position) const override;
  void read(std::int64_t first, std::span<std::int32_t> ids) const override;

 private:
  std::size_t part_of(std::int64_t position) const;

  std::vector<std::unique_ptr<TokenSource>> parts_;
  std::vector<std::int64_t> first_{0};  // position of each part, and the total at the end
};

}  // namespace fourfold
