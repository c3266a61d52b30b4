#include "infer/sample.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/random.hpp"

namespace fourfold {

std::int32_t sample_token(std::span<const double> logits, const SamplingOptions& options, std::int64_t index) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  const auto greedy = static_cast<std::int32_t>(largest - logits.begin());
  if (options.temperature <= 0) return greedy;

  std::vector<double> weights(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) weights[i] = std::exp((logits[i] - *largest) / options.temperature);
  const auto k = static_cast<std::size_t>(options.top_k);
  if (options.top_k > 0 && k < weights.size()) {
    std::vector<std::size_t> order(weights.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::nth_element(order.begin(), order.begin() + options.top_k, order.end(), [&](std::size_t a, std::size_t b) {
      return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
    });
    for (std::size_t i = k; i < order.size(); ++i) weights[order[i]] = 0;
  }
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  const double draw = total * random_stream(options.seed, "generate").uniform(static_cast<std::uint64_t>(index));
  double sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    sum += weights[i];
    if (draw < sum) return static_cast<std::int32_t>(i);
  }
  return greedy;  // rounding left the draw at the very end
}

}  // namespace fourfold
