// How a file stores token ids.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>

namespace fourfold {

// Megatron's code of each is its number here; u32 has none there (llm.c's Llama-3 shards have it).
enum class TokenType : std::uint8_t { u8 = 1, i8 = 2, i16 = 3, i32 = 4, i64 = 5, u16 = 8, u32 = 32 };

inline std::int64_t token_bytes(TokenType type) {
  switch (type) {
    case TokenType::u8:
    case TokenType::i8:
      return 1;
    case TokenType::i16:
    case TokenType::u16:
      return 2;
    case TokenType::i32:
    case TokenType::u32:
      return 4;
    case TokenType::i64:
      break;
  }
  return 8;
}

inline const char* token_type_name(TokenType type) {
  switch (type) {
    case TokenType::u8:
      return "u8";
    case TokenType::i8:
      return "i8";
    case TokenType::i16:
      return "i16";
    case TokenType::i32:
      return "i32";
    case TokenType::i64:
      return "i64";
    case TokenType::u16:
      return "u16";
    case TokenType::u32:
      break;
  }
  return "u32";
}

// The largest id that the type can hold, of those that a vocabulary can have.
inline std::int32_t largest_of(TokenType type) {
  switch (type) {
    case TokenType::u8:
      return std::numeric_limits<std::uint8_t>::max();
    case TokenType::i8:
      return std::numeric_limits<std::int8_t>::max();
    case TokenType::i16:
      return std::numeric_limits<std::int16_t>::max();
    case TokenType::u16:
      return std::numeric_limits<std::uint16_t>::max();
    case TokenType::i32:
    case TokenType::i64:
    case TokenType::u32:
      break;
  }
  return std::numeric_limits<std::int32_t>::max();
}

// A little-endian number that may stand at any address.
template <class Number>
Number load_number(const unsigned char* at) {
  Number value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Calls body(Stored{}) with the type that the file stores.
template <class Body>
auto with_token_type(TokenType type, Body body) {
  switch (type) {
    case TokenType::u8:
      return body(std::uint8_t{});
    case TokenType::i8:
      return body(std::int8_t{});
    case TokenType::i16:
      return body(std::int16_t{});
    case TokenType::i32:
      return body(std::int32_t{});
    case TokenType::i64:
      return body(std::int64_t{});
    case TokenType::u16:
      return body(std::uint16_t{});
    case TokenType::u32:
      break;
  }
  return body(std::uint32_t{});
}

}  // namespace fourfold
