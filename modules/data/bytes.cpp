#include "data/bytes.hpp"

#include <numbers>

#include "base/error.hpp"

namespace fourfold {

std::vector<std::int32_t> encode_bytes(std::string_view text) {
  std::vector<std::int32_t> ids;
  ids.reserve(text.size());
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::string decode_bytes(std::span<const std::int32_t> ids) {
  std::string text;
  text.reserve(ids.size());
  for (const std::int32_t id : ids) {
    if (id >= 0 && id < kEndOfDocument) text.push_back(static_cast<char>(static_cast<unsigned char>(id)));
  }
  return text;
}

double bits_per_byte(double nats, std::int64_t bytes) {
  FOURFOLD_ASSERT(bytes > 0, "bits per byte of no text");
  return nats / std::numbers::ln2 / static_cast<double>(bytes);
}

}  // namespace fourfold
