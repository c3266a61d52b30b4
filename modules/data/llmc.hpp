// The header of llm.c's files: 256 numbers of 32 bits.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "data/token_type.hpp"

namespace fourfold {

inline constexpr std::int64_t kLlmcHead = 1024;  // bytes
inline constexpr std::int32_t kLlmcGpt2Tokens = 20240520, kLlmcLlama3Tokens = 20240801;

struct LlmcTokens {
  TokenType type = TokenType::u16;
  std::int64_t tokens = 0;
};

// Whether a file begins with the number of one of llm.c's kinds, tokens or not.
bool is_llmc(std::span<const unsigned char> bytes);

// `head`: the first kLlmcHead bytes of a file of `file_bytes` bytes, or all of a shorter one. Errors (Error, input),
// with file, byte and value: another of llm.c's kinds (by name), another version, a size that is not the head and the
// tokens that it counts.
LlmcTokens parse_llmc_tokens(std::span<const unsigned char> head, std::int64_t file_bytes, const std::string& path);

}  // namespace fourfold
