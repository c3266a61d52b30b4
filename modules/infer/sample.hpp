// One token from the logits of the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fourfold {

struct SamplingOptions {
  double temperature = 1.0;  // 0: greedy, the largest logit, ties to the lower id
  std::int64_t top_k = 0;    // only the k largest logits (ties to the lower id); 0: all
  double top_p = 1.0;        // of these the fewest likeliest whose probabilities reach this sum, at least one; 1: all
  std::uint64_t seed = 1234;
};

// Token number `index` after prompt number `prompt`: softmax(logits / temperature) in double, cut by top_k and then by
// top_p (Holtzman et al. 2020, nucleus sampling), inverted at the draw of (seed, prompt, index) with the ids in
// ascending order. logits is not empty.
std::int32_t sample_token(std::span<const double> logits, const SamplingOptions& options, std::size_t prompt,
                          std::int64_t index);

}  // namespace fourfold
