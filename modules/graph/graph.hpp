// What the layers of a model cost, per token and per layer. Counts only: bytes follow from the element sizes of a run,
// seconds from a machine. A "token" is one row of the model's inputs (one sample of an mlp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fourfold {

enum class LayerKind { embedding, norm, attention, feed_forward, experts, linear, head };

struct LayerCost {
  std::string name;  // the prefix of its parameters' names: "layers.3.attention"
  LayerKind kind = LayerKind::linear;

  // Stored elements; a tied head stores none.
  std::int64_t matrix_parameters = 0;  // two dims or more, experts apart
  std::int64_t expert_parameters = 0;  // of all experts together, their biases included
  std::int64_t vector_parameters = 0;  // norms and biases

  // Matrix elements that one token is multiplied with: the top_k experts of it only, a tied head too, look-ups not.
  std::int64_t product_elements = 0;
  // Scores and weighted sums of causal attention, one token on average, forward: half of the square.
  std::int64_t attention_flops = 0;

  // Kept for backward, elements of one token. Of the compute type: those of the residual stream's width, which the col
  // axis cuts, and those of heads, inner features or vocabulary, which the row axis cuts. Of the accumulate type:
  // statistics that are not cut, and those of heads, cut over row.
  std::int64_t kept_stream = 0;
  std::int64_t kept_features = 0;
  std::int64_t kept_statistics = 0;
  std::int64_t kept_head_statistics = 0;

  std::int64_t parameters() const { return matrix_parameters + expert_parameters + vector_parameters; }
};

struct Graph {
  std::vector<LayerCost> layers;
  std::int64_t tokens_per_sample = 1;

  // The sum of one field over the layers.
  std::int64_t sum(std::int64_t LayerCost::*field) const;
  std::int64_t parameters() const;

  // Model FLOPs of one token: 2 a multiply-add; backward twice forward. Recompute is not counted; attention is causal.
  //   forward 2 x product_elements + attention, training 3 x that = 6 x active matrix elements + attention.
  std::int64_t forward_flops() const;
  std::int64_t training_flops() const;
};

}  // namespace fourfold
