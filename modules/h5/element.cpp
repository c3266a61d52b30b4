#include "h5/element.hpp"

#include <array>

namespace fourfold::h5 {

namespace {

struct Row {
  ElementType type;
  std::int64_t bytes;
  std::string_view name;
};

constexpr std::array<Row, 5> kElements{{{ElementType::fp64, 8, "fp64"},
                                        {ElementType::fp32, 4, "fp32"},
                                        {ElementType::bf16, 2, "bf16"},
                                        {ElementType::int64, 8, "int64"},
                                        {ElementType::int32, 4, "int32"}}};

const Row& row(ElementType type) {
  return kElements[static_cast<std::size_t>(type)];
}

}  // namespace

std::int64_t element_bytes(ElementType type) {
  return row(type).bytes;
}

std::string_view element_name(ElementType type) {
  return row(type).name;
}

std::optional<ElementType> element_named(std::string_view name) {
  for (const Row& element : kElements)
    if (element.name == name) return element.type;
  return std::nullopt;
}

}  // namespace fourfold::h5
