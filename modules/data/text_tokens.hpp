// A text file as tokens: each byte is a token; the file is one document, followed by the end-of-document token.
#pragma once

#include "data/mapped_file.hpp"
#include "data/token_source.hpp"

namespace fourfold {

class TextTokens : public TokenSource {
 public:
  explicit TextTokens(MappedFile file) : file_(std::move(file)) {}

  const std::string& path() const { return file_.path(); }
  std::span<const unsigned char> text() const { return file_.bytes(); }

  std::int64_t size() const override { return static_cast<std::int64_t>(file_.bytes().size()) + 1; }
  std::int32_t largest_id() const override;
  std::string describe() const override;
  bool is_text() const override { return true; }
  std::int64_t bytes(std::int64_t begin, std::int64_t end) const override;
  TokenPlace place(std::int64_t position) const override;
  void read(std::int64_t first, std::span<std::int32_t> ids) const override;

 private:
  MappedFile file_;
};

}  // namespace fourfold
