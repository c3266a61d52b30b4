// The byte tokenizer: ids 0..255 are bytes, 256 ends a document.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fourfold {

inline constexpr std::int32_t kEndOfDocument = 256;

std::vector<std::int32_t> encode_bytes(std::string_view text);
// The bytes that the ids spell; the end-of-document token and ids beyond it spell nothing.
std::string decode_bytes(std::span<const std::int32_t> ids);

// Bits that a model spends on a byte of text: `nats` is the sum of the losses of all target tokens, end-of-document
// included (its cost is part of the text's), `bytes` the number of targets that are bytes.
double bits_per_byte(double nats, std::int64_t bytes);

}  // namespace fourfold
