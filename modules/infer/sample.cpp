#include "infer/sample.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/random.hpp"

namespace fourfold {

namespace {

// The ids by falling logit, ties to the lower id; the first `count` of them are sorted.
std::vector<std::size_t> likeliest(std::span<const double> logits, std::size_t count) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::partial_sort(
      order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
      [&](std::size_t a, std::size_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  return order;
}

}  // namespace

std::int32_t sample_token(std::span<const double> logits, const SamplingOptions& options, std::size_t prompt,
                          std::int64_t index) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  const auto greedy = static_cast<std::int32_t>(largest - logits.begin());
  if (options.temperature <= 0) return greedy;

  std::vector<double> weights(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) weights[i] = std::exp((logits[i] - *largest) / options.temperature);
  std::size_t kept = weights.size();
  if (options.top_k > 0) kept = std::min(kept, static_cast<std::size_t>(options.top_k));
  if (kept < weights.size() || options.top_p < 1) {
    const std::vector<std::size_t> order = likeliest(logits, kept);
    double all = 0;
    for (std::size_t i = 0; i < kept; ++i) all += weights[order[i]];
    double reached = 0;
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (i >= kept || (i > 0 && reached >= options.top_p * all))
        weights[order[i]] = 0;
      else
        reached += weights[order[i]];
    }
  }
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  const double draw =
      total * random_stream(options.seed, "generate", prompt).uniform(static_cast<std::uint64_t>(index));
  double sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    sum += weights[i];
    if (draw < sum) return static_cast<std::int32_t>(i);
  }
  return greedy;  // rounding left the draw at the very end
}

}  // namespace fourfold
