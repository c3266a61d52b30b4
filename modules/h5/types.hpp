// ElementType as HDF5's types. Included by this module's sources only.
#pragma once

#include <hdf5.h>

#include <bit>
#include <optional>

#include "h5/element.hpp"

namespace fourfold::h5 {

static_assert(std::endian::native == std::endian::little, "files are little-endian and nothing is converted");

inline hid_t stored_type(ElementType type) {
  switch (type) {
    case ElementType::fp64:
      return H5T_IEEE_F64LE;
    case ElementType::fp32:
      return H5T_IEEE_F32LE;
    case ElementType::bf16:
      return H5T_STD_U16LE;
    case ElementType::int64:
      return H5T_STD_I64LE;
    case ElementType::int32:
      return H5T_STD_I32LE;
  }
  return H5I_INVALID_HID;
}

// `named`: the dataset says itself what its 16-bit integers are.
inline std::optional<ElementType> element_stored_as(hid_t type, bool named) {
  for (const ElementType element :
       {ElementType::fp64, ElementType::fp32, ElementType::bf16, ElementType::int64, ElementType::int32})
    if (H5Tequal(type, stored_type(element)) > 0 && named == (element == ElementType::bf16)) return element;
  return std::nullopt;
}

}  // namespace fourfold::h5
