// Corpora mixed by weight: which sample of which corpus is sample k of a run.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/batch.hpp"
#include "data/sample_order.hpp"

namespace fourfold {

// Sample k of a run over corpora of n_c samples with whole weights w_c, as a pure function of k. Of any first k samples
// each corpus has had its share to within one sample for each corpus before it (corpus c takes floor(k w_c / (w_c +
// w_c+1 + ...)) of the k that those before it leave), exactly where k divides by the sum of the weights. Each corpus is
// gone through in its own SampleOrder, epoch after epoch: none of its samples comes again before all have come. One
// corpus is its SampleOrder.
class MixedOrder {
 public:
  // Sizes are at least 1, weights too; one of each a corpus.
  MixedOrder(std::uint64_t seed, const std::vector<std::int64_t>& sizes, std::vector<std::int64_t> weights);
  std::int64_t samples() const { return first_.back(); }  // of all corpora
  // The sample's number, where those of the corpora follow one another.
  std::int64_t at(std::int64_t k) const;

 private:
  std::vector<SampleOrder> orders_;
  std::vector<std::int64_t> weights_;
  std::vector<std::int64_t> from_here_;  // sum of the weights from each corpus on
  std::vector<std::int64_t> first_{0};   // number of each corpus' first sample, and of all at the end
};

// Sets of samples of equal length, one after another.
class JoinedSamples : public Samples {
 public:
  explicit JoinedSamples(std::vector<std::unique_ptr<Samples>> parts);  // at least one

  std::int64_t count() const override { return first_.back(); }
  std::int64_t tokens() const override { return parts_.front()->tokens(); }
  bool is_text() const override;  // all parts are
  std::int64_t bytes(std::int64_t begin, std::int64_t end) const override;
  void append(std::int64_t index, Batch& batch) const override;

 private:
  std::vector<std::unique_ptr<Samples>> parts_;
  std::vector<std::int64_t> first_{0};
};

}  // namespace fourfold
