// One micro-batch as one coordinate sees it, in host memory.
#pragma once

#include <cstdint>
#include <vector>

namespace fourfold {

// B sequences of T tokens, row-major; B = 0 is ordinary. Token models use ids and targets, regression inputs and
// values, classification inputs and targets; what a model does not use is empty. Rows of regression and classification
// are sequences of one token.
struct Batch {
  std::int64_t sequences = 0;    // B
  std::int64_t tokens = 1;       // T
  std::int64_t input_width = 0;  // of `inputs`
  std::int64_t value_width = 0;  // of `values`
  // Place of the first sequence among the step's global batch (evaluation: among the evaluated samples). The B
  // sequences follow one another there.
  std::int64_t first_sample = 0;
  std::int64_t all_sequences = 0;     // of the micro-batch, over all coordinates
  std::vector<std::int64_t> samples;  // B: number of each sample in its data set
  std::vector<std::int32_t> ids;      // B x T
  std::vector<std::int32_t> targets;  // B x T; -1: no target
  std::vector<double> inputs;         // B x input_width
  std::vector<double> values;         // B x value_width

  std::int64_t rows() const { return sequences * tokens; }
};

// A set of samples that can be had in any order: text cut into sequences, or a synthetic function.
class Samples {
 public:
  virtual ~Samples() = default;
  virtual std::int64_t count() const = 0;
  virtual std::int64_t tokens() const = 0;  // T; every row of a sample is a target
  virtual bool is_text() const = 0;         // rows are the bytes of text; bytes() is 0 where they are not
  virtual std::int64_t bytes(std::int64_t begin, std::int64_t end) const = 0;  // of text in the targets of [begin, end)
  // Adds sample `index` (0 <= index < count()) as the batch's last sequence.
  virtual void append(std::int64_t index, Batch& batch) const = 0;
};

}  // namespace fourfold
