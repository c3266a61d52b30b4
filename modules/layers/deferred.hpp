// Movements that run behind other work: reductions of weight gradients that are waited for at the end of backward, and
// weights gathered ahead of their use.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "comm/collectives.hpp"
#include "grid/partition.hpp"
#include "tensor/tensor.hpp"

namespace fourfold {

// Operations under way with what is to be done when they are complete, in order; at most `most` at a time.
class Deferred {
 public:
  explicit Deferred(std::size_t most) : most_(most) {}
  void add(Pending pending, std::function<void()> then);
  void finish();

  // While the schedule runs weight products by themselves, none runs behind the sum of an input gradient.
  void keep_weights_apart(bool apart) { weights_apart_ = apart; }
  bool weights_apart() const { return weights_apart_; }

 private:
  struct Item {
    Pending pending;
    std::function<void()> then;
  };
  std::size_t most_;
  std::deque<Item> items_;
  bool weights_apart_ = false;
};

// The weights of one chunk of the model that are gathered over depth. Layers register their uses in forward order; a
// use that is asked for starts the next one in the direction of the phase (forward: up, backward: down), one use ahead.
// Between hold() and release() all of them stay whole, and so do their gradients until reduce().
//
// A part of a unit that runs forward again before its backward takes its weights in forward order once more; they then
// stay until that backward has used them, so that both need one gather. What is ahead follows that order too.
template <class T>
class GatherQueue {
 public:
  // `start` begins the gather into a fresh tensor. `backward`: the weight is used on the way back too. `matrix`: the
  // same for all uses of one matrix. `reduce` ends a gradient that was kept whole.
  struct Use {
    std::function<std::pair<Tensor<T>, Pending>(Phase)> start;
    std::function<void()> reduce;
    const void* matrix = nullptr;
    bool backward = true;
  };
  std::size_t add(Use use);
  Tensor<T> take(std::size_t use, Phase phase, bool ahead);

  std::size_t size() const { return uses_.size(); }
  // Before the backward uses of the unit that has `unit`, those of `again` run forward again.
  void add_recompute(Range again, Range unit);
  // While it lives, forward runs again.
  class Again {
   public:
    explicit Again(GatherQueue& queue) : queue_(queue) { queue_.again_ = true; }
    ~Again() { queue_.again_ = false; }
    Again(const Again&) = delete;
    Again& operator=(const Again&) = delete;

   private:
    GatherQueue& queue_;
  };

  // Starts the gathers of all matrices that the phase uses, once each.
  void hold(Phase phase);
  void release();
  bool holds() const { return holds_; }
  void reduce();

 private:
  struct Held {
    Tensor<T> whole;
    Pending pending;
  };
  struct Recompute {
    Range again, unit;
  };
  struct Ahead {
    std::size_t use;
    Phase phase;
  };
  std::optional<Ahead> next(std::size_t use, Phase phase) const;
  std::optional<Ahead> next_backward(std::size_t end) const;
  const Recompute* recompute_of(std::size_t use) const;
  std::vector<Use> uses_;
  std::vector<Recompute> recomputes_;
  bool again_ = false;
  std::map<std::size_t, Tensor<T>> kept_;  // of a recompute, by use, until the backward
  std::size_t ready_use_ = 0;
  std::optional<std::pair<Tensor<T>, Pending>> ready_;
  bool holds_ = false;
  std::map<const void*, Held> held_;
};

}  // namespace fourfold
