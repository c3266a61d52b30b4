#include "data/llmc.hpp"

#include <algorithm>
#include <array>

#include "base/error.hpp"

namespace fourfold {

namespace {

struct Kind {
  std::int32_t magic;
  const char* what;
};

constexpr std::array kKinds{Kind{kLlmcGpt2Tokens, "tokens of GPT-2"},   Kind{kLlmcLlama3Tokens, "tokens of Llama 3"},
                            Kind{20240326, "a model's weights"},        Kind{20240527, "an optimizer's state"},
                            Kind{20240327, "a debugging state"},        Kind{20240328, "a tokenizer"},
                            Kind{20240522, "multiple-choice questions"}};

const Kind* kind_of(std::span<const unsigned char> bytes) {
  if (bytes.size() < 4) return nullptr;
  const std::int32_t magic = load_number<std::int32_t>(bytes.data());
  const auto found = std::find_if(kKinds.begin(), kKinds.end(), [&](const Kind& kind) { return kind.magic == magic; });
  return found == kKinds.end() ? nullptr : &*found;
}

}  // namespace

bool is_llmc(std::span<const unsigned char> bytes) {
  return kind_of(bytes) != nullptr;
}

LlmcTokens parse_llmc_tokens(std::span<const unsigned char> head, std::int64_t file_bytes, const std::string& path) {
  const auto refuse = [&](std::int64_t at, const std::string& what) {
    fail_all(ExitCode::input, path + ": llm.c, byte " + std::to_string(at) + ": " + what);
  };
  const Kind* kind = kind_of(head);
  if (kind == nullptr) refuse(0, "does not begin with the number of one of its kinds");
  const bool llama = kind->magic == kLlmcLlama3Tokens;
  if (kind->magic != kLlmcGpt2Tokens && !llama) {
    refuse(0, "holds " + std::string(kind->what) + " (" + std::to_string(kind->magic) + "), not tokens");
  }
  if (file_bytes < kLlmcHead) refuse(file_bytes, "ends inside its head of " + std::to_string(kLlmcHead) + " bytes");
  const std::int32_t version = load_number<std::int32_t>(head.data() + 4);
  const std::int32_t known = llama ? 7 : 1;
  if (version != known) {
    refuse(4, "version " + std::to_string(version) + " of " + kind->what + "; known: " + std::to_string(known));
  }
  LlmcTokens header;
  header.type = llama ? TokenType::u32 : TokenType::u16;
  header.tokens = load_number<std::int32_t>(head.data() + 8);
  const std::int64_t expected = kLlmcHead + header.tokens * token_bytes(header.type);
  if (header.tokens < 0 || file_bytes != expected) {
    refuse(8, std::to_string(header.tokens) + " tokens make a file of " + std::to_string(expected) +
                  " bytes, this one has " + std::to_string(file_bytes));
  }
  return header;
}

}  // namespace fourfold
