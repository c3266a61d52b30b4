#include "layers/rows.hpp"

namespace fourfold {

Index Rows::count() const {
  Index rows = 0;
  for (const Range& range : ranges) rows += sequences * range.size();
  return rows;
}

TokenLayout Rows::layout(Range cols) const {
  TokenLayout layout;
  layout.width = cols.size();
  for (const Range& range : ranges) {
    const auto number = static_cast<Index>(layout.blocks.size());
    layout.blocks.push_back({separate ? Range{number, number + 1} : Range{0, sequences}, range, cols});
  }
  return layout;
}

Rows cut_over_row(const Rows& rows, int parts, int index) {
  Rows cut;
  cut.sequences = rows.sequences;
  cut.separate = rows.separate;
  for (const Range& range : rows.ranges) {
    const Range mine = part(range.size(), parts, index);
    cut.ranges.push_back({range.begin + mine.begin, range.begin + mine.end});
  }
  return cut;
}

template <class T>
RowPlan<T> plan_rows(const LayerContext<T>& context, const Pass<T>& pass) {
  RowPlan<T> plan;
  plan.coordinate.sequences = pass.batch->sequences;
  plan.coordinate.ranges = pass.batch->token_ranges;
  plan.cached = pass.caches != nullptr;
  plan.coordinate.separate = plan.cached;
  if (plan.coordinate.ranges.empty() && !plan.cached) plan.coordinate.ranges = {{0, pass.batch->tokens}};
  plan.sequence_tokens = pass.batch->sequence_tokens > 0 ? pass.batch->sequence_tokens : pass.batch->tokens;
  plan.depth_parts = context.options.depth_sequence && !pass.batch->token_ranges.empty() && !plan.cached;
  plan.first_keys = pass.batch->first_keys;
  plan.positions = pass.batch->positions;
  plan.stream_positions = pass.batch->stream_positions;
  plan.sharded = context.options.sequence_shard && context.extent(Axis::row) > 1;
  plan.stream = plan.sharded ? cut_over_row(plan.coordinate, context.extent(Axis::row), context.place(Axis::row))
                             : plan.coordinate;
  return plan;
}

template <class T>
std::unique_ptr<LayoutGather<T>> RowPlan<T>::over_row(const LayerContext<T>& context, Index width) const {
  if (!sharded) return nullptr;
  std::vector<TokenLayout> parts;
  for (int r = 0; r < context.extent(Axis::row); ++r) {
    parts.push_back(cut_over_row(coordinate, context.extent(Axis::row), r).layout({0, width}));
  }
  return std::make_unique<LayoutGather<T>>(context.comms.group({Axis::row}), context.pool, std::move(parts),
                                           coordinate.layout({0, width}), context.options.summation);
}

template struct RowPlan<float>;
template struct RowPlan<double>;
template struct RowPlan<kernels::bf16>;
template RowPlan<float> plan_rows(const LayerContext<float>&, const Pass<float>&);
template RowPlan<double> plan_rows(const LayerContext<double>&, const Pass<double>&);
template RowPlan<kernels::bf16> plan_rows(const LayerContext<kernels::bf16>&, const Pass<kernels::bf16>&);

}  // namespace fourfold
