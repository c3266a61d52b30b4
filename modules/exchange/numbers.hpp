// Elements from one type to another, as files hold them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "h5/element.hpp"

namespace fourfold::exchange {

enum class Number { f64, f32, bf16, f16 };

std::int64_t number_bytes(Number number);
const char* number_name(Number number);                       // of safetensors: "BF16"
const char* torch_name(Number number);                        // of config.json: "bfloat16"
std::optional<Number> number_named(const std::string& name);  // by either
Number number_of(h5::ElementType type);

// to.size() / number_bytes(to_type) elements. A wider target is exact; a narrower one rounds to nearest, ties to even,
// and beyond its range becomes infinite. NaN stays NaN.
void convert(std::span<const unsigned char> from, Number from_type, std::span<unsigned char> to, Number to_type);

}  // namespace fourfold::exchange
