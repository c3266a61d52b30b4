// What one forward or backward pass over one micro-batch needs to know beside the activations.
#pragma once

#include <cstdint>
#include <vector>

#include "grid/partition.hpp"
#include "tensor/tensor.hpp"

namespace fourfold {

// One micro-batch of one batch coordinate, on the device. Token models use ids and targets (R = sequences x tokens
// rows); the MLP uses inputs and either targets (classes) or values (regression), one row a sample.
template <class T>
struct MicroBatch {
  Index sequences = 0;
  Index tokens = 1;  // rows per sequence held here (1 for the MLP)
  // Which tokens of each sequence these are; rows are stacked range by range, (sequence, token) order in each. Empty:
  // the sequence's first `tokens`. With caches: one range a sequence, which begins where its past ends.
  std::vector<Range> token_ranges;
  Index sequence_tokens = 0;     // of a whole sequence where depth coordinates hold parts; 0: `tokens`
  Index first_sample = 0;        // number of its first sequence among the samples of the step
  Index all_sequences = 0;       // of the micro-batch, over all batch coordinates
  Tensor<std::int32_t> ids;      // R x 1
  Tensor<std::int32_t> targets;  // R x 1; below zero: no target
  // Where documents inside a sequence are kept apart, R x 1 each; else empty.
  Tensor<std::int32_t> first_keys;        // data.reset_attention: where the row's document begins in its sequence
  Tensor<std::int32_t> positions;         // data.reset_positions: the row's place in its document
  Tensor<std::int32_t> stream_positions;  // the same of the rows of this rank's part of the residual stream
  Tensor<T> inputs;                       // R x widths[0]
  Tensor<T> values;                       // R x widths.back()
  Index rows() const { return sequences * tokens; }
};

// Generation: keys and values of one sequence's past.
template <class T>
struct AttentionCache {
  Tensor<T> keys, values;  // capacity x (K d of this rank)
};
template <class T>
struct SequenceCache {
  std::vector<AttentionCache<T>> layers;  // by number in the model; those of other stages are empty
};

template <class T>
struct Pass {
  const MicroBatch<T>* batch = nullptr;
  bool training = false;     // dropout on, activations kept for backward
  bool keep = true;          // of training: false where forward will be run again before the backward
  std::uint64_t step = 0;    // counts from 1; draws of dropout are functions of it
  double loss_scale = 1.0;   // 1 / (target tokens of the whole step): the factor of every loss gradient
  Index step_sequences = 0;  // of the whole step, over its micro-batches and batch coordinates; 0: the batch's
  Index micro_batches = 1;   // of the step
  // Generation: range i of the batch's token_ranges is of a sequence of its own, whose past is caches[i].
  const std::vector<const SequenceCache<T>*>* caches = nullptr;
  bool keeps() const { return training && keep; }
};

// Sums over this rank's rows; equal on all row and col ranks of a coordinate.
struct LossSum {
  double loss = 0;           // sum over rows with a target
  std::int64_t targets = 0;  // how many there were
};

}  // namespace fourfold
