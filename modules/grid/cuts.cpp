#include "grid/cuts.hpp"

#include <numeric>

namespace fourfold {

Range kv_heads_held(std::int64_t kv_heads, int rows, int place) {
  if (rows <= kv_heads) return part(kv_heads, rows, place);
  const std::int64_t head = place / kv_head_sharers(kv_heads, rows);
  return {head, head + 1};
}

int kv_head_sharers(std::int64_t kv_heads, int rows) {
  return rows > kv_heads ? rows / static_cast<int>(kv_heads) : 1;
}

ColPlace place_over_col(std::int64_t kv_heads, int cols, int col) {
  const int head_parts = static_cast<int>(std::gcd(kv_heads, std::int64_t{cols}));
  return {head_parts, col % head_parts, cols / head_parts, col / head_parts};
}

std::vector<Range> depth_token_ranges(std::int64_t tokens, int extent, int place) {
  return {part(tokens, 2 * extent, place), part(tokens, 2 * extent, 2 * extent - 1 - place)};
}

}  // namespace fourfold
