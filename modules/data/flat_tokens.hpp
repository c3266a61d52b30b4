// Token ids that lie back to back in a memory-mapped file, whatever stands before them.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "data/mapped_file.hpp"
#include "data/megatron.hpp"
#include "data/token_source.hpp"
#include "data/token_type.hpp"

namespace fourfold {

class FlatTokens : public TokenSource {
 public:
  // The `count` ids from byte `begin` on; `kind` ("llm.c") is for the fingerprint. With an index (a view of
  // `index_file`) places are told by document.
  FlatTokens(MappedFile file, std::int64_t begin, TokenType type, std::int64_t count, std::string kind);
  FlatTokens(MappedFile bin, MappedFile index_file, const MegatronIndex& index);

  std::int64_t size() const override { return count_; }
  std::int32_t largest_id() const override { return largest_of(type_); }
  const std::string& kind() const { return kind_; }
  const MegatronIndex* index() const { return index_ ? &*index_ : nullptr; }  // null: not Megatron's
  std::string describe() const override;
  bool is_text() const override { return false; }
  std::int64_t bytes(std::int64_t /*begin*/, std::int64_t /*end*/) const override { return 0; }  // ids spell no bytes
  TokenPlace place(std::int64_t position) const override;
  void read(std::int64_t first, std::span<std::int32_t> ids) const override;

 private:
  MappedFile file_;
  std::int64_t begin_;
  TokenType type_;
  std::int64_t count_;
  std::string kind_;
  std::optional<MappedFile> index_file_;
  std::optional<MegatronIndex> index_;
};

}  // namespace fourfold
