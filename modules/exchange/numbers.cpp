#include "exchange/numbers.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.hpp"

namespace fourfold::exchange {

namespace {

struct Names {
  Number number;
  const char* name;
  const char* torch;
  std::int64_t bytes;
};
constexpr std::array kNumbers{Names{Number::f64, "F64", "float64", 8}, Names{Number::f32, "F32", "float32", 4},
                              Names{Number::bf16, "BF16", "bfloat16", 2}, Names{Number::f16, "F16", "float16", 2}};

const Names& names_of(Number number) {
  return kNumbers[static_cast<std::size_t>(number)];
}

// IEEE 754 half precision. Every half is a float.
float from_half(std::uint16_t half) {
  const std::uint32_t sign = std::uint32_t{half & 0x8000u} << 16;
  const std::uint32_t exponent = half >> 10 & 31u, fraction = half & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent == 0) return std::copysign(std::ldexp(static_cast<float>(fraction), -24), sign != 0 ? -1.0f : 1.0f);
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

std::uint16_t to_half(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint16_t sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
  const float size = std::abs(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | 0x7e00u | (bits >> 13 & 0x3ffu));
  if (size >= 65520.0f) return static_cast<std::uint16_t>(sign | 0x7c00u);  // half of the last step rounds up
  if (size < 0x1p-14f) {  // steps of 2^-24; what rounds up to 2^-14 has its bits too
    return static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(std::nearbyint(std::ldexp(size, 24))));
  }
  const std::uint32_t rounded = (bits & 0x7fffffffu) + 0xfffu + (bits >> 13 & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded >> 13) - (112u << 10)));
}

std::uint16_t to_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) {
    const std::uint16_t kept = static_cast<std::uint16_t>(bits >> 16);
    return (kept & 0x7fu) != 0 ? kept : static_cast<std::uint16_t>(kept | 0x40u);  // its fraction was below
  }
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

template <class T>
T load(const unsigned char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

double read_one(const unsigned char* at, Number type) {
  switch (type) {
    case Number::f64:
      return load<double>(at);
    case Number::f32:
      return static_cast<double>(load<float>(at));
    case Number::bf16:
      return static_cast<double>(std::bit_cast<float>(std::uint32_t{load<std::uint16_t>(at)} << 16));
    case Number::f16:
      break;
  }
  return static_cast<double>(from_half(load<std::uint16_t>(at)));
}

void write_one(unsigned char* at, Number type, double value) {
  const auto store = [&](auto number) { std::memcpy(at, &number, sizeof number); };
  switch (type) {
    case Number::f64:
      return store(value);
    case Number::f32:
      return store(static_cast<float>(value));
    case Number::bf16:
      return store(to_bf16(static_cast<float>(value)));
    case Number::f16:
      return store(to_half(static_cast<float>(value)));
  }
}

}  // namespace

std::int64_t number_bytes(Number number) {
  return names_of(number).bytes;
}
const char* number_name(Number number) {
  return names_of(number).name;
}
const char* torch_name(Number number) {
  return names_of(number).torch;
}

std::optional<Number> number_named(const std::string& name) {
  for (const Names& names : kNumbers) {
    if (name == names.name || name == names.torch) return names.number;
  }
  return std::nullopt;
}

Number number_of(h5::ElementType type) {
  FOURFOLD_ASSERT(type == h5::ElementType::fp64 || type == h5::ElementType::fp32 || type == h5::ElementType::bf16,
                  "weights are floating-point numbers");
  return type == h5::ElementType::fp64 ? Number::f64 : type == h5::ElementType::fp32 ? Number::f32 : Number::bf16;
}

void convert(std::span<const unsigned char> from, Number from_type, std::span<unsigned char> to, Number to_type) {
  const std::size_t wide = static_cast<std::size_t>(number_bytes(from_type));
  const std::size_t narrow = static_cast<std::size_t>(number_bytes(to_type));
  const std::size_t count = to.size() / narrow;
  FOURFOLD_ASSERT(from.size() == count * wide, "as many elements on both sides");
  if (from_type == to_type) {
    std::copy(from.begin(), from.end(), to.begin());
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    write_one(to.data() + i * narrow, to_type, read_one(from.data() + i * wide, from_type));
  }
}

}  // namespace fourfold::exchange
