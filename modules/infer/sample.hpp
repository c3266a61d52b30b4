// One token from the logits of the next.
#pragma once

#include <cstdint>
#include <span>

namespace fourfold {

struct SamplingOptions {
  double temperature = 1.0;  // 0: greedy, the largest logit, ties to the lower id
  std::int64_t top_k = 0;    // only the k largest logits (ties to the lower id); 0: all
  std::uint64_t seed = 1234;
};

// Token number `index` of the text: softmax(logits / temperature) in double, inverted at the draw of (seed, index) with
// the ids in ascending order. logits is not empty.
std::int32_t sample_token(std::span<const double> logits, const SamplingOptions& options, std::int64_t index);

}  // namespace fourfold
