// How attention's heads and tokens are cut over the grid: arithmetic only.
#pragma once

#include <cstdint>
#include <vector>

#include "grid/partition.hpp"

namespace fourfold {

// The KV heads that row rank `place` of `rows` reads: its part of them, or, where there are more row ranks than KV
// heads, the one that it shares with its neighbours (then `kv_heads` divides `rows`).
Range kv_heads_held(std::int64_t kv_heads, int rows, int place);
// Row ranks that hold one KV head.
int kv_head_sharers(std::int64_t kv_heads, int rows);

// attention.split: col. A col rank's place among heads and sequences: KV heads as far as they divide, sequences for
// the rest.
struct ColPlace {
  int head_parts = 1, head_part = 0, sequence_parts = 1, sequence_part = 0;
};
ColPlace place_over_col(std::int64_t kv_heads, int cols, int col);

// The two ranges of tokens of depth coordinate `place` under depth_splits: sequence: of 2 x extent parts it holds one
// from the front and its mirror image from the back, which balances causal work.
std::vector<Range> depth_token_ranges(std::int64_t tokens, int extent, int place);

}  // namespace fourfold
