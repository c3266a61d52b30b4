// The model of a deck, cut over the dense grid: a list of units (embedding, blocks, head; or the matrices of an MLP).
// Backward is split as zero-bubble schedules need it: input gradients first, weight gradients from what was kept.
#pragma once

#include <memory>
#include <vector>

#include "comm/grid_comms.hpp"
#include "deck/deck.hpp"
#include "layers/pass.hpp"
#include "layers/unit.hpp"
#include "tensor/param.hpp"

namespace fourfold {

// What a micro-batch keeps between forward and backward: one entry a unit.
template <class T>
struct Activations {
  std::vector<std::unique_ptr<Kept>> units;
};

template <class T>
class Model {
 public:
  // Collective over the grid's ranks only in what `comms` already holds: makes no communicator. Parameters are
  // allocated and initialised. `deck` must have passed the reader's checks and not_built_yet().
  Model(const Deck& deck, const GridComms& comms, Pool& pool);
  ~Model();

  ParamStore<T>& params() { return store_; }
  const Deck& deck() const { return deck_; }

  // Loss of a micro-batch. pass.training: fills `kept` for the two calls of backward.
  LossSum forward(const Pass<T>& pass, Activations<T>& kept);
  // Adds the gradient of loss_scale x (sum of losses) to every Param's grad, unit by unit from the last to the first;
  // what a unit kept is freed as soon as its weight gradients are made.
  void backward(const Pass<T>& pass, Activations<T>& kept);

  // Logits of the last `rows` rows (generation): rows x V, the whole vocabulary on every rank. No loss. With
  // pass.caches the rows are taken to follow what the caches hold, and the caches grow by them.
  Tensor<T> logits(const Pass<T>& pass, Index rows);
  std::vector<AttentionCache<T>> make_caches(Index capacity);

 private:
  PlannedPass<T> plan(const Pass<T>& pass) const;

  Deck deck_;
  const GridComms& comms_;
  Pool& pool_;
  ParamStore<T> store_;
  Deferred deferred_;
  GatherQueue<T> gathers_;
  LayerContext<T> context_;
  std::vector<std::unique_ptr<Unit<T>>> units_;
};

}  // namespace fourfold
