// The units that the models are made of, as constructors: name to unit in one place.
#pragma once

#include <memory>
#include <vector>

#include "deck/deck.hpp"
#include "layers/embedding.hpp"
#include "layers/unit.hpp"
#include "model/stage_part.hpp"

namespace fourfold {

// Where dropout acts, for its draws ("dropout/embedding", "dropout/layers.3.attention").
template <class T>
Tensor<T> apply_dropout(const LayerContext<T>& context, const PlannedPass<T>& pass, const std::string& purpose,
                        double p, Index width, Index sequence, const Tensor<T>& x);

// The columns of a net's inputs that this rank's first matrix reads.
template <class T>
Tensor<T> held_inputs(const LayerContext<T>& context, const Tensor<T>& inputs);

// A unit that can also run with caches of past keys and values (transformer blocks).
template <class T>
class CachedUnit : public Unit<T> {
 public:
  using Unit<T>::Unit;
  virtual void add_cache(Index capacity, SequenceCache<T>& cache) const = 0;  // its layer's part
};

// The matrix of the token embedding, and of a tied head.
template <class T>
std::shared_ptr<Weight<T>> make_embedding_table(const LayerContext<T>& context, const Deck& deck,
                                                const StagePart& part);
// Token embedding (and learned positions, dropout).
template <class T>
std::unique_ptr<Unit<T>> make_embedding_unit(const LayerContext<T>& context, const Deck& deck,
                                             std::shared_ptr<Weight<T>> table);
// Pre-norm transformer block number `layer`.
template <class T>
std::unique_ptr<CachedUnit<T>> make_block(const LayerContext<T>& context, const Deck& deck, Index layer);

// Final norm (transformer only), output projection, loss. `table` null: a matrix of its own.
template <class T>
class HeadUnit : public Unit<T> {
 public:
  using Unit<T>::Unit;
  // Logits of some rows of the coordinate: as many x this rank's part of the vocabulary.
  virtual Tensor<T> logits(const PlannedPass<T>& pass, const Tensor<T>& x, const std::vector<Index>& rows) const = 0;
  virtual Range held() const = 0;
};
template <class T>
std::unique_ptr<HeadUnit<T>> make_head(const LayerContext<T>& context, const Deck& deck,
                                       std::shared_ptr<Weight<T>> table);

// Matrix number `layer` of an MLP; the activation after all but the last, and the loss after the last.
template <class T>
std::unique_ptr<Unit<T>> make_mlp_unit(const LayerContext<T>& context, const Deck& deck, Index layer);
// Block number `layer` of a residual stack, h + down(act(up h)), and the loss after the last.
template <class T>
std::unique_ptr<Unit<T>> make_residual_unit(const LayerContext<T>& context, const Deck& deck, Index layer);

}  // namespace fourfold
