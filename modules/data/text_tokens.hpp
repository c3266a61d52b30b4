// Text files as tokens: each byte is a token, each file is one document, followed by the end-of-document token.
#pragma once

#include <vector>

#include "data/mapped_file.hpp"
#include "data/token_source.hpp"

namespace fourfold {

class TextTokens : public TokenSource {
 public:
  // `key` ("data.train") names the list in messages. Errors (Error, input): every file that cannot be used, in one go.
  TextTokens(const std::vector<std::string>& files, const std::string& key);

  std::int64_t size() const override { return first_token_.back(); }
  std::int32_t largest_id() const override;
  std::string describe() const override;
  std::int64_t bytes(std::int64_t begin, std::int64_t end) const override;
  TokenPlace place(std::int64_t position) const override;
  void read(std::int64_t first, std::span<std::int32_t> ids) const override;

 private:
  std::size_t file_of(std::int64_t position) const;

  std::vector<MappedFile> files_;
  std::vector<std::int64_t> first_token_{0};  // of each file, and the total at the end
};

}  // namespace fourfold
