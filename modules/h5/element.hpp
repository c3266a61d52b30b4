// The numbers that files hold. In memory and on disk they are the same, so that HDF5 never converts.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace fourfold::h5 {

// bf16 is stored as unsigned 16-bit integers with the attribute `element` = "bf16".
enum class ElementType { fp64, fp32, bf16, int64, int32 };

std::int64_t element_bytes(ElementType type);
std::string_view element_name(ElementType type);
std::optional<ElementType> element_named(std::string_view name);

}  // namespace fourfold::h5
