// Movements that run behind other work: reductions of weight gradients that are waited for at the end of backward, and
// weights gathered ahead of their use.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "comm/collectives.hpp"
#include "tensor/tensor.hpp"

namespace fourfold {

// Operations under way with what is to be done when they are complete, in order; at most `most` at a time.
class Deferred {
 public:
  explicit Deferred(std::size_t most) : most_(most) {}
  void add(Pending pending, std::function<void()> then);
  void finish();

 private:
  struct Item {
    Pending pending;
    std::function<void()> then;
  };
  std::size_t most_;
  std::deque<Item> items_;
};

// Gathers weights one use ahead. Layers register their uses in forward order; a use that is asked for starts the next
// one in the direction of the phase (forward: up, backward: down).
template <class T>
class GatherQueue {
 public:
  // `start` begins the gather into a fresh tensor. `backward`: the weight is used on the way back too.
  using Start = std::function<std::pair<Tensor<T>, Pending>(Phase)>;
  std::size_t add(Start start, bool backward);
  Tensor<T> take(std::size_t use, Phase phase, bool ahead);

 private:
  struct Use {
    Start start;
    bool backward = true;
  };
  std::optional<std::size_t> next(std::size_t use, Phase phase) const;
  std::vector<Use> uses_;
  std::size_t ready_use_ = 0;
  std::optional<std::pair<Tensor<T>, Pending>> ready_;
};

}  // namespace fourfold
