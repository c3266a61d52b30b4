#include "data/bytes.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace fourfold {

TEST(Bytes, RoundTripOfEveryByte) {
  std::string text;
  for (int i = 0; i < 256; ++i) text.push_back(static_cast<char>(i));
  const std::vector<std::int32_t> ids = encode_bytes(text);
  ASSERT_EQ(ids.size(), 256u);
  for (int i = 0; i < 256; ++i) EXPECT_EQ(ids[static_cast<std::size_t>(i)], i);
  EXPECT_EQ(decode_bytes(ids), text);
}

TEST(Bytes, EndOfDocumentSpellsNothing) {
  const std::vector<std::int32_t> ids{'a', kEndOfDocument, 'b', -1, 300};
  EXPECT_EQ(decode_bytes(ids), "ab");
}

TEST(Bytes, BitsPerByte) {
  EXPECT_DOUBLE_EQ(bits_per_byte(100 * std::log(256.0), 100), 8.0);
  // 99 bytes and one end-of-document at ln 257 each: the end is paid for, but is no byte.
  EXPECT_DOUBLE_EQ(bits_per_byte(100 * std::log(257.0), 99), 100.0 / 99.0 * std::log2(257.0));
}

}  // namespace fourfold
