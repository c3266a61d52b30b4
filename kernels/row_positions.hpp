// Where the rows of an activation stand in their sequences.
#pragma once

#include <cstdint>

#include "kernels/types.hpp"

namespace fourfold::kernels {

// Row r stands at offset + r % tokens; where `at` is given, at at[r] (positions that begin again in each document).
struct RowPositions {
  Index tokens = 0;
  Index offset = 0;
  const std::int32_t* at = nullptr;

  KOKKOS_FORCEINLINE_FUNCTION Index operator()(Index row) const {
    return at != nullptr ? Index(at[row]) : offset + row % tokens;
  }
};

}  // namespace fourfold::kernels
