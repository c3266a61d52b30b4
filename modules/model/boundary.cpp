#include "model/boundary.hpp"

#include "grid/cuts.hpp"
#include "layers/rows.hpp"

namespace fourfold {

TokenLayout boundary_layout(const Deck& deck, const ProcessGrid& grid, const Coordinates& here, std::int64_t unit,
                            std::int64_t samples) {
  const ModelDeck& model = deck.model;
  const DenseShape& dense = grid.stage(here.stage).dense;
  const bool by_token = deck.parallel.depth_splits == DepthSplits::sequence;
  const std::int64_t tokens = takes_rows(model.kind) ? 1 : model.sequence;
  Rows rows;
  if (by_token && dense.depth > 1) {
    rows.ranges = depth_token_ranges(tokens, dense.depth, here.depth);
  } else {
    rows.ranges = {{0, tokens}};
  }
  if (deck.parallel.sequence_shard && dense.row > 1) rows = cut_over_row(rows, dense.row, here.row);
  const std::int64_t index = by_token ? here.data : std::int64_t{here.data} * dense.depth + here.depth;
  const Range sequences = part(samples, deck.parallel.coordinates(dense), index);

  // Matrices of an mlp read their inputs over col and row in turn; all others over col.
  const bool plain = model.kind == ModelKind::mlp;
  const std::int64_t width = plain ? model.widths[static_cast<std::size_t>(unit)] : model.hidden;
  const Range cols = plain && unit % 2 == 1 ? part(width, dense.row, here.row) : part(width, dense.col, here.col);
  TokenLayout layout;
  layout.width = cols.size();
  for (const Range& range : rows.ranges) layout.blocks.push_back({sequences, range, cols});
  return layout;
}

Range generated_part(const ProcessGrid& grid, const Coordinates& here, std::int64_t sequences) {
  const DenseShape& dense = grid.stage(here.stage).dense;
  return part(sequences, dense.coordinates(), std::int64_t{here.data} * dense.depth + here.depth);
}

TokenLayout generated_layout(const Deck& deck, const ProcessGrid& grid, const Coordinates& here,
                             const std::vector<Range>& ranges) {
  const DenseShape& dense = grid.stage(here.stage).dense;
  const Range mine = generated_part(grid, here, static_cast<std::int64_t>(ranges.size()));
  Rows rows;
  rows.ranges.assign(ranges.begin() + mine.begin, ranges.begin() + mine.end);
  if (deck.parallel.sequence_shard && dense.row > 1) rows = cut_over_row(rows, dense.row, here.row);
  const Range cols = part(deck.model.hidden, dense.col, here.col);
  TokenLayout layout;
  layout.width = cols.size();
  for (std::int64_t s = 0; s < mine.size(); ++s) {
    const Range& tokens = rows.ranges[static_cast<std::size_t>(s)];
    if (tokens.size() > 0) layout.blocks.push_back({{mine.begin + s, mine.begin + s + 1}, tokens, cols});
  }
  return layout;
}

}  // namespace fourfold
