#include "train/micro_batch.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "deck/derive.hpp"

namespace fourfold {

namespace {

template <class T, class S>
Tensor<T> to_device(const std::vector<S>& host, Index rows, Index cols, Pool& pool) {
  Tensor<T> tensor(pool, MemoryTag::buffers, rows, cols);
  const auto mirror = Kokkos::create_mirror_view(tensor.vector());
  std::transform(host.begin(), host.end(), mirror.data(), [](S x) { return static_cast<T>(x); });
  Kokkos::deep_copy(tensor.vector(), mirror);
  return tensor;
}

}  // namespace

BatchCoordinate batch_coordinate(const ParallelDeck& parallel, const GridComms& comms) {
  const Coordinates& here = comms.here();
  const DenseShape& dense = comms.grid().stage(here.stage).dense;
  if (parallel.depth_splits == DepthSplits::sequence) return {dense.data, here.data};
  return {dense.coordinates(), std::int64_t{here.data} * dense.depth + here.depth};
}

bool needs_samples(const Deck& deck, const ModelEnds& ends) {
  return ends.any() || deck.data.keeps_documents_apart();  // attention is on all stages
}

LossSum sum_over_coordinates(const LossSum& mine, const GridComms& comms, Phase phase) {
  const bool counts = comms.here().row == 0 && comms.here().col == 0;
  // Counts are exact in a double up to 2^53: one sum for both.
  std::array<double, 2> sums{counts ? mine.loss : 0.0, counts ? static_cast<double>(mine.targets) : 0.0};
  all_reduce_sum<double>(comms.world(), sums, Summation::deterministic, phase);
  return {sums[0], static_cast<std::int64_t>(sums[1])};
}

namespace {

// The rows of some ranges of tokens, stacked range by range, of host rows in (sequence, token) order.
std::vector<std::int32_t> rows_of(const std::vector<std::int32_t>& all, Index sequences, Index tokens,
                                  const std::vector<Range>& ranges) {
  std::vector<std::int32_t> rows;
  for (const Range& range : ranges) {
    for (Index s = 0; s < sequences; ++s) {
      const auto first = all.begin() + s * tokens;
      rows.insert(rows.end(), first + range.begin, first + range.end);
    }
  }
  return rows;
}

}  // namespace

namespace {

// Where each row's document begins in its sequence: behind the last end of one.
std::vector<std::int32_t> document_starts(const Batch& batch, std::int64_t end) {
  std::vector<std::int32_t> starts(batch.ids.size());
  for (std::size_t row = 0; row < starts.size(); ++row) {
    const auto token = static_cast<std::int32_t>(static_cast<std::int64_t>(row) % batch.tokens);
    if (token > 0) starts[row] = batch.ids[row - 1] == end ? token : starts[row - 1];
  }
  return starts;
}

// The tokens of each sequence that this rank has rows of.
std::vector<Range> token_ranges(const ParallelDeck& parallel, const GridComms& comms, std::int64_t tokens) {
  const DenseShape& dense = comms.grid().stage(comms.here().stage).dense;
  if (parallel.depth_splits != DepthSplits::sequence || dense.depth == 1) return {{0, tokens}};
  return depth_token_ranges(tokens, dense.depth, comms.here().depth);
}

template <class T>
void keep_documents_apart(const Deck& deck, const GridComms& comms, const Batch& batch, Pool& pool,
                          MicroBatch<T>& micro) {
  const std::vector<Range> ranges = token_ranges(deck.parallel, comms, batch.tokens);
  const auto rows = [&](const std::vector<std::int32_t>& all, const std::vector<Range>& of) {
    const std::vector<std::int32_t> mine = rows_of(all, batch.sequences, batch.tokens, of);
    return to_device<std::int32_t>(mine, static_cast<Index>(mine.size()), 1, pool);
  };
  std::vector<std::int32_t> starts = document_starts(batch, deck.data.end_of_document);
  if (deck.data.reset_attention) micro.first_keys = rows(starts, ranges);
  if (!deck.data.reset_positions) return;
  for (std::size_t row = 0; row < starts.size(); ++row) {
    starts[row] = static_cast<std::int32_t>(static_cast<std::int64_t>(row) % batch.tokens) - starts[row];
  }
  micro.positions = micro.stream_positions = rows(starts, ranges);
  const int row_extent = comms.grid().stage(comms.here().stage).dense.row;
  if (!deck.parallel.sequence_shard || row_extent == 1) return;
  micro.stream_positions = rows(starts, cut_over_row({batch.sequences, ranges}, row_extent, comms.here().row).ranges);
}

}  // namespace

template <class T>
MicroBatch<T> make_micro_batch(const Deck& deck, const GridComms& comms, const Batch& batch, Pool& pool,
                               const ModelEnds& ends) {
  const ModelDeck& model = deck.model;
  MicroBatch<T> micro;
  micro.all_sequences = batch.all_sequences;
  if (deck.data.keeps_documents_apart()) keep_documents_apart(deck, comms, batch, pool, micro);
  const DenseShape& dense = comms.grid().stage(comms.here().stage).dense;
  if (deck.parallel.depth_splits == DepthSplits::sequence && dense.depth > 1) {
    micro.sequences = batch.sequences;
    micro.sequence_tokens = batch.tokens;
    micro.first_sample = batch.first_sample;
    micro.token_ranges = depth_token_ranges(batch.tokens, dense.depth, comms.here().depth);
    micro.tokens = 0;
    for (const Range& range : micro.token_ranges) micro.tokens += range.size();
    const auto mine = [&](const std::vector<std::int32_t>& all) {
      return to_device<std::int32_t>(rows_of(all, batch.sequences, batch.tokens, micro.token_ranges), micro.rows(), 1,
                                     pool);
    };
    if (ends.first) micro.ids = mine(batch.ids);
    if (ends.last) micro.targets = mine(batch.targets);
    return micro;
  }
  micro.sequences = batch.sequences;
  micro.tokens = batch.tokens;
  micro.first_sample = batch.first_sample;
  const Index rows = batch.rows();
  const bool of_rows = takes_rows(model.kind);
  if (ends.first) {
    if (of_rows) {
      micro.inputs = to_device<T>(batch.inputs, rows, input_width(model), pool);
    } else {
      micro.ids = to_device<std::int32_t>(batch.ids, rows, 1, pool);
    }
  }
  if (ends.last) {
    if (of_rows && model.loss == LossKind::squared_error) {
      micro.values = to_device<T>(batch.values, rows, output_width(model), pool);
    } else {
      micro.targets = to_device<std::int32_t>(batch.targets, rows, 1, pool);
    }
  }
  return micro;
}

template MicroBatch<float> make_micro_batch<float>(const Deck&, const GridComms&, const Batch&, Pool&,
                                                   const ModelEnds&);
template MicroBatch<double> make_micro_batch<double>(const Deck&, const GridComms&, const Batch&, Pool&,
                                                     const ModelEnds&);
template MicroBatch<kernels::bf16> make_micro_batch<kernels::bf16>(const Deck&, const GridComms&, const Batch&, Pool&,
                                                                   const ModelEnds&);

}  // namespace fourfold
