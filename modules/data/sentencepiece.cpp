#include <sentencepiece_processor.h>

#include "base/error.hpp"
#include "data/tokenizer.hpp"

namespace fourfold {

namespace {

class SentencePiece : public Tokenizer {
 public:
  explicit SentencePiece(const std::string& path) : path_(path) {
    const auto status = processor_.Load(path);
    if (!status.ok()) fail_all(ExitCode::input, path + ": no SentencePiece model: " + status.ToString());
  }
  std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<int> ids;
    const auto status = processor_.Encode({text.data(), text.size()}, &ids);
    if (!status.ok()) fail_all(ExitCode::input, path_ + ": " + status.ToString());
    return {ids.begin(), ids.end()};
  }
  std::string decode(std::span<const std::int32_t> ids) const override {
    for (const std::int32_t id : ids) {
      if (id < 0 || id >= vocab()) fail_all(ExitCode::input, path_ + ": has no token " + std::to_string(id));
    }
    std::string text;
    const auto status = processor_.Decode(std::vector<int>(ids.begin(), ids.end()), &text);
    if (!status.ok()) fail_all(ExitCode::input, path_ + ": " + status.ToString());
    return text;
  }
  std::int64_t vocab() const override { return processor_.GetPieceSize(); }
  std::optional<std::int32_t> end_of_document() const override {
    return processor_.eos_id() < 0 ? std::nullopt : std::optional<std::int32_t>(processor_.eos_id());
  }

 private:
  std::string path_;
  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

std::unique_ptr<Tokenizer> open_sentencepiece(const std::string& path) {
  return std::make_unique<SentencePiece>(path);
}

}  // namespace fourfold
