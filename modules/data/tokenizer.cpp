#include "data/tokenizer.hpp"

#include <filesystem>

#include "base/error.hpp"
#include "data/byte_bpe.hpp"
#include "data/bytes.hpp"

namespace fourfold {

namespace {

namespace fs = std::filesystem;

class Bytes : public Tokenizer {
 public:
  std::vector<std::int32_t> encode(std::string_view text) const override { return encode_bytes(text); }
  std::string decode(std::span<const std::int32_t> ids) const override { return decode_bytes(ids); }
  std::int64_t vocab() const override { return kEndOfDocument + 1; }
  std::optional<std::int32_t> end_of_document() const override { return kEndOfDocument; }
};

bool there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& spec) {
  if (spec == "bytes") return std::make_unique<Bytes>();
  std::error_code ignored;
  fs::path path = spec;
  if (fs::is_directory(path, ignored)) {
    if (there(path / "tokenizer.json")) {
      path /= "tokenizer.json";
    } else if (there(path / "vocab.json")) {
      path /= "vocab.json";
    } else if (there(path / "tokenizer.model")) {
      path /= "tokenizer.model";
    } else {
      fail_all(ExitCode::input, spec + ": holds neither tokenizer.json, vocab.json nor tokenizer.model");
    }
  }
  const std::string name = path.filename().string();
  if (name.ends_with(".model")) return open_sentencepiece(path.string());
  if (name.ends_with("vocab.json")) {
    const std::string merges = path.string().substr(0, path.string().size() - 10) + "merges.txt";
    return std::make_unique<ByteBpe>(read_vocab_and_merges(path.string(), merges), path.string());
  }
  if (name.ends_with(".json")) return std::make_unique<ByteBpe>(read_tokenizer_json(path.string()), path.string());
  fail_all(ExitCode::input, spec +
                                ": is no tokenizer by its name; legal: bytes, *.json of byte-level BPE, vocab.json "
                                "with merges.txt beside it, *.model of SentencePiece, a folder with one of them");
}

}  // namespace fourfold
