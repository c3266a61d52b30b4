#include "graph/graph.hpp"

namespace fourfold {

std::int64_t Graph::sum(std::int64_t LayerCost::*field) const {
  std::int64_t total = 0;
  for (const LayerCost& layer : layers) total += layer.*field;
  return total;
}

std::int64_t Graph::parameters() const {
  return sum(&LayerCost::matrix_parameters) + sum(&LayerCost::expert_parameters) + sum(&LayerCost::vector_parameters);
}

std::int64_t Graph::forward_flops() const {
  return 2 * sum(&LayerCost::product_elements) + sum(&LayerCost::attention_flops);
}

std::int64_t Graph::training_flops() const {
  return 3 * forward_flops();
}

}  // namespace fourfold
