// A token stream cut into sequences for next-token prediction.
#pragma once

#include <memory>

#include "data/batch.hpp"
#include "data/token_source.hpp"
#include "grid/partition.hpp"

namespace fourfold {

// Sequence i of a stream of N tokens holds tokens [i T, i T + T), its targets are [i T + 1, i T + T + 1): neighbours
// overlap by one token, each token but the first is a target once. The stream holds (N - 1) / T whole sequences; the
// tail is not used.
std::int64_t whole_sequences(const TokenSource& source, std::int64_t tokens);

// The sequences `range` of a stream.
class TokenSamples : public Samples {
 public:
  TokenSamples(std::shared_ptr<const TokenSource> source, Range range, std::int64_t tokens, std::int64_t vocab);

  std::int64_t count() const override { return range_.size(); }
  std::int64_t tokens() const override { return tokens_; }
  bool is_text() const override { return source_->is_text(); }
  std::int64_t bytes(std::int64_t begin, std::int64_t end) const override;
  // Errors (Error, input, one rank): an id outside [0, vocab), with its place.
  void append(std::int64_t index, Batch& batch) const override;

 private:
  std::shared_ptr<const TokenSource> source_;
  Range range_;
  std::int64_t tokens_;
  std::int64_t vocab_;
};

}  // namespace fourfold
