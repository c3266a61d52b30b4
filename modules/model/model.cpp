#include "model/model.hpp"

#include "base/error.hpp"
#include "base/snap.hpp"
#include "base/trace.hpp"
#include "deck/derive.hpp"
#include "kernels/vector.hpp"
#include "model/units.hpp"

namespace fourfold {

namespace {

// Reductions of weight gradients that may be under way at once: each holds a whole local matrix.
constexpr std::size_t kDeferredReductions = 2;

LayerOptions layer_options(const Deck& deck) {
  LayerOptions options;
  options.summation = deck.numerics.deterministic ? Summation::deterministic : Summation::fast;
  if (deck.numerics.snap) options.snap = Snap{*deck.numerics.snap, snap_gradient_bits(*deck.numerics.snap)};
  options.seed = deck.run.seed;
  options.sequence_shard = deck.parallel.sequence_shard;
  options.attention_over_col = deck.parallel.attention_split == AttentionSplit::col;
  options.depth_sequence = deck.parallel.depth_splits == DepthSplits::sequence;
  options.overlap = deck.parallel.overlap;
  return options;
}

}  // namespace

template <class T>
Model<T>::Model(const Deck& deck, const GridComms& comms, Pool& pool)
    : deck_(deck), comms_(comms), pool_(pool), deferred_(kDeferredReductions), context_{comms,     pool,
                                                                                        store_,    layer_options(deck),
                                                                                        deferred_, gathers_} {
  const LayerContext<T>& context = context_;
  if (deck.model.kind == ModelKind::mlp) {
    units_ = make_mlp(context, deck_);
  } else {
    std::shared_ptr<Weight<T>> table;
    units_.push_back(make_embedding_unit(context, deck_, table));
    const Index blocks = deck.model.kind == ModelKind::transformer ? deck.model.layers : 0;
    for (Index layer = 0; layer < blocks; ++layer) units_.push_back(make_block(context, deck_, layer));
    if (!deck.model.tie_embeddings) table = nullptr;
    units_.push_back(make_head(context, deck_, table));
  }
  const SharersOfGroup ranks = [&](const GroupKey& key) -> const Communicator& { return comms.group(key); };
  const PartsOfGroup parts = [&](const GroupKey& key) {
    return key.empty() ? std::int64_t{1} : update_parts(deck_, ranks(key).size());
  };
  store_.allocate(pool, parts, ranks);
}

template <class T>
Model<T>::~Model() = default;

template <class T>
PlannedPass<T> Model<T>::plan(const Pass<T>& pass) const {
  PlannedPass<T> planned{pass, plan_rows(context_, pass)};
  return planned;
}

template <class T>
LossSum Model<T>::forward(const Pass<T>& given, Activations<T>& kept) {
  const PlannedPass<T> pass = plan(given);
  kept.units.clear();
  Tensor<T> x;
  LossSum loss;
  for (const auto& unit : units_) {
    const TraceScope scope(comms_.world().trace(), unit->name(), "forward");
    kept.units.push_back(unit->forward(pass, x, loss));
  }
  return loss;
}

template <class T>
void Model<T>::backward(const Pass<T>& given, Activations<T>& kept) {
  const PlannedPass<T> pass = plan(given);
  FOURFOLD_ASSERT(kept.units.size() == units_.size(), "backward follows a training forward");
  Tensor<T> dx;
  for (std::size_t i = units_.size(); i-- > 0;) {
    const TraceScope scope(comms_.world().trace(), units_[i]->name(), "backward");
    units_[i]->backward_input(pass, *kept.units[i], dx);
    units_[i]->backward_weight(pass, *kept.units[i]);
    kept.units[i].reset();
  }
  deferred_.finish();
  kept.units.clear();
}

template <class T>
Tensor<T> Model<T>::logits(const Pass<T>& given, Index rows) {
  const PlannedPass<T> pass = plan(given);
  FOURFOLD_ASSERT(deck_.model.kind != ModelKind::mlp, "token models have logits");
  Tensor<T> x;
  LossSum none;
  for (std::size_t i = 0; i + 1 < units_.size(); ++i) units_[i]->forward(pass, x, none);
  const auto& head = static_cast<const HeadUnit<T>&>(*units_.back());
  const Tensor<T> mine = head.logits(pass, x, rows);

  // The parts of the vocabulary side by side.
  const Communicator& row = comms_.group(AxisSet{Axis::row});
  if (row.size() == 1) return mine;
  const auto columns = [&](Range cols) { return TokenLayout{{TokenBlock{{0, rows}, {0, 1}, cols}}, cols.size()}; };
  std::vector<TokenLayout> parts;
  for (int r = 0; r < row.size(); ++r) parts.push_back(columns(part(deck_.model.vocab, row.size(), r)));
  const LayoutGather<T> over_row(row, pool_, std::move(parts), columns({0, deck_.model.vocab}), Summation::fast);
  return over_row.gather(mine, Phase::forward);
}

template <class T>
std::vector<AttentionCache<T>> Model<T>::make_caches(Index capacity) {
  std::vector<AttentionCache<T>> caches;
  for (const auto& unit : units_) {
    if (const auto* block = dynamic_cast<const CachedUnit<T>*>(unit.get()))
      caches.push_back(block->make_cache(capacity));
  }
  return caches;
}

template class Model<float>;
template class Model<double>;
template class Model<kernels::bf16>;

}  // namespace fourfold
