#include "model/model.hpp"

#include <utility>

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

// The queue of gathers is the chunk's own: one chunk does not gather ahead for another.
template <class T>
Model<T>::Chunk::Chunk(const LayerContext<T>& shared)
    : context{shared.comms, shared.pool, shared.store, shared.options, shared.deferred, gathers} {}

template <class T>
Model<T>::Model(const Deck& deck, const GridComms& comms, Pool& pool, const StagePart& part)
    : deck_(deck), comms_(comms), pool_(pool), deferred_(kDeferredReductions), options_(layer_options(deck)) {
  build(part);
  const SharersOfGroup ranks = [&](const GroupKey& key) -> const Communicator& { return comms.group(key); };
  const PartsOfGroup parts = [&](const GroupKey& key) {
    return key.empty() ? std::int64_t{1} : update_parts(deck_, ranks(key).size());
  };
  store_.allocate(pool, parts, ranks);
}

template <class T>
void Model<T>::build(const StagePart& part) {
  const ModelDeck& model = deck_.model;
  const Index head = unit_count(model) - 1;
  const bool has_table = model.kind == ModelKind::transformer || model.kind == ModelKind::embedding;
  const std::vector<Keeping> keeping = keeping_of_units(deck_);
  std::shared_ptr<Weight<T>> table;
  GatherQueue<T> none;
  for (std::size_t c = 0; c < part.chunks.size(); ++c) {
    Chunk& chunk = chunks_.emplace_back(LayerContext<T>{comms_, pool_, store_, options_, deferred_, none});
    chunk.first_unit = part.chunks[c].begin;
    for (Index unit = part.chunks[c].begin; unit < part.chunks[c].end; ++unit) {
      const bool tied_head = has_table && model.tie_embeddings && unit == head;
      if (has_table && (unit == 0 || (tied_head && !table))) {
        store_.begin(0, shares_table(model, part.chunks[c]) ? kSharedChunk : static_cast<int>(c));
        table = make_embedding_table(chunk.context, deck_, part);
      }
      store_.begin(unit, static_cast<int>(c));
      const std::size_t first_use = chunk.gathers.size();
      chunk.units.push_back(make_unit(chunk.context, unit, unit == 0 || tied_head ? table : nullptr));
      chunk.keeping.push_back(keeping[static_cast<std::size_t>(unit)]);
      const Range uses{static_cast<Index>(first_use), static_cast<Index>(chunk.gathers.size())};
      if (chunk.keeping.back() == Keeping::recompute) chunk.gathers.add_recompute(uses, uses);
    }
  }
}

template <class T>
std::unique_ptr<Unit<T>> Model<T>::make_unit(const LayerContext<T>& context, Index unit,
                                             std::shared_ptr<Weight<T>> table) const {
  if (deck_.model.kind == ModelKind::mlp) return make_mlp_unit(context, deck_, unit);
  if (deck_.model.kind == ModelKind::residual) return make_residual_unit(context, deck_, unit);
  if (unit == 0) return make_embedding_unit(context, deck_, std::move(table));
  if (unit + 1 == unit_count(deck_.model)) return make_head(context, deck_, std::move(table));
  return make_block(context, deck_, unit - 1);
}

template <class T>
Model<T>::~Model() = default;

template <class T>
PlannedPass<T> Model<T>::plan(const Pass<T>& pass) const {
  PlannedPass<T> planned{pass, plan_rows(chunks_.front().context, pass)};
  return planned;
}

template <class T>
Index Model<T>::input_cols(int chunk) const {
  return at(chunk).units.front()->input_cols();
}

template <class T>
Index Model<T>::stream_rows(const Pass<T>& pass) const {
  return plan(pass).rows.stream.count();
}

template <class T>
Tensor<T> Model<T>::forward(int chunk, const Pass<T>& given, Tensor<T> x, Activations<T>& kept, LossSum& loss) {
  const PlannedPass<T> pass = plan(given);
  PlannedPass<T> without_keeping = pass;
  without_keeping.keep = false;
  kept.units.clear();
  for (std::size_t i = 0; i < at(chunk).units.size(); ++i) {
    Unit<T>& unit = *at(chunk).units[i];
    const TraceScope scope(comms_.world().trace(), unit.name(), "forward");
    typename Activations<T>::OfUnit& entry = kept.units.emplace_back();
    const bool again = pass.training && at(chunk).keeping[i] == Keeping::recompute;
    if (again) entry.input = x;
    entry.kept = unit.forward(again ? without_keeping : pass, x, loss);
  }
  return x;
}

template <class T>
void Model<T>::recompute(Chunk& chunk, std::size_t i, const PlannedPass<T>& pass,
                         typename Activations<T>::OfUnit& entry) {
  Unit<T>& unit = *chunk.units[i];
  if (chunk.keeping[i] != Keeping::recompute && !unit.recomputes()) return;
  const TraceScope scope(comms_.world().trace(), unit.name() + " recompute", "recompute");
  const typename GatherQueue<T>::Again again(chunk.gathers);
  if (chunk.keeping[i] == Keeping::recompute) {
    LossSum counted_already;
    Tensor<T> x = std::exchange(entry.input, {});
    entry.kept = unit.forward(pass, x, counted_already);
  } else {
    unit.recompute(pass, *entry.kept);
  }
}

template <class T>
HeldBlocks Model<T>::offloaded(int chunk, Activations<T>& kept) const {
  HeldBlocks blocks;
  for (std::size_t i = 0; i < kept.units.size(); ++i) {
    if (at(chunk).keeping[i] == Keeping::offload) kept.units[i].kept->hold(blocks);
  }
  // What a batch holds anyway stays.
  std::erase_if(blocks, [](const HeldBlock& block) { return Pool::tag_of(*block.handle) != MemoryTag::activations; });
  return blocks;
}

template <class T>
Tensor<T> Model<T>::backward(int chunk, const Pass<T>& given, Activations<T>& kept, Tensor<T> dx) {
  const PlannedPass<T> pass = plan(given);
  const auto& units = at(chunk).units;
  FOURFOLD_ASSERT(kept.units.size() == units.size(), "backward follows a training forward");
  deferred_.keep_weights_apart(false);
  for (std::size_t i = units.size(); i-- > 0;) {
    const TraceScope scope(comms_.world().trace(), units[i]->name(), "backward");
    recompute(at(chunk), i, pass, kept.units[i]);
    units[i]->backward_input(pass, *kept.units[i].kept, dx);
    units[i]->backward_weight(pass, *kept.units[i].kept);
    kept.units[i].kept.reset();
  }
  deferred_.finish();
  kept.units.clear();
  return dx;
}

template <class T>
Tensor<T> Model<T>::backward_input(int chunk, const Pass<T>& given, Activations<T>& kept, Tensor<T> dx) {
  const PlannedPass<T> pass = plan(given);
  const auto& units = at(chunk).units;
  FOURFOLD_ASSERT(kept.units.size() == units.size(), "backward follows a training forward");
  deferred_.keep_weights_apart(true);
  for (std::size_t i = units.size(); i-- > 0;) {
    const TraceScope scope(comms_.world().trace(), units[i]->name(), "backward");
    recompute(at(chunk), i, pass, kept.units[i]);
    units[i]->backward_input(pass, *kept.units[i].kept, dx);
  }
  return dx;
}

template <class T>
void Model<T>::backward_weight(int chunk, const Pass<T>& given, Activations<T>& kept) {
  const PlannedPass<T> pass = plan(given);
  const auto& units = at(chunk).units;
  FOURFOLD_ASSERT(kept.units.size() == units.size(), "weight gradients follow those of the inputs");
  for (std::size_t i = units.size(); i-- > 0;) {
    const TraceScope scope(comms_.world().trace(), units[i]->name(), "weight gradient");
    units[i]->backward_weight(pass, *kept.units[i].kept);
    kept.units[i].kept.reset();
  }
  deferred_.finish();
  kept.units.clear();
}

template <class T>
void Model<T>::gather_weights(int chunk, Phase phase) {
  at(chunk).gathers.hold(phase);
}

template <class T>
void Model<T>::release_weights(int chunk) {
  at(chunk).gathers.release();
}

template <class T>
void Model<T>::scatter_gradients(int chunk) {
  at(chunk).gathers.reduce();
  deferred_.finish();
}

template <class T>
std::vector<std::pair<Index, MoeLayer<T>*>> Model<T>::expert_layers() const {
  std::vector<std::pair<Index, MoeLayer<T>*>> layers;
  for (const Chunk& chunk : chunks_) {
    for (std::size_t i = 0; i < chunk.units.size(); ++i) {
      const Index layer = chunk.first_unit + static_cast<Index>(i) - first_layer_unit(deck_.model);
      if (MoeLayer<T>* experts = chunk.units[i]->experts()) layers.emplace_back(layer, experts);
    }
  }
  return layers;
}

template <class T>
LossSum Model<T>::forward(const Pass<T>& pass, Activations<T>& kept) {
  FOURFOLD_ASSERT(chunks() == 1, "the whole model is here");
  LossSum loss;
  forward(0, pass, {}, kept, loss);
  return loss;
}

template <class T>
void Model<T>::backward(const Pass<T>& pass, Activations<T>& kept) {
  FOURFOLD_ASSERT(chunks() == 1, "the whole model is here");
  backward(0, pass, kept, {});
}

template <class T>
Tensor<T> Model<T>::extend(const Pass<T>& given, Tensor<T> x, const std::vector<Index>& rows) {
  const PlannedPass<T> pass = plan(given);
  FOURFOLD_ASSERT(chunks() == 1, "generation has one chunk a stage");
  const HeadUnit<T>* head = nullptr;
  for (const auto& unit : at(0).units) {
    head = dynamic_cast<const HeadUnit<T>*>(unit.get());
    if (head != nullptr) break;
    LossSum none;
    unit->forward(pass, x, none);
  }
  if (head == nullptr) return x;
  const Tensor<T> mine = head->logits(pass, x, rows);

  // The parts of the vocabulary side by side.
  const Communicator& row = comms_.group(AxisSet{Axis::row});
  if (row.size() == 1) return mine;
  const auto columns = [&](Range cols) {
    return TokenLayout{{TokenBlock{{0, mine.rows()}, {0, 1}, cols}}, cols.size()};
  };
  std::vector<TokenLayout> parts;
  for (int r = 0; r < row.size(); ++r) parts.push_back(columns(part(deck_.model.vocab, row.size(), r)));
  const LayoutGather<T> over_row(row, pool_, std::move(parts), columns({0, deck_.model.vocab}), Summation::fast);
  return over_row.gather(mine, Phase::forward);
}

template <class T>
SequenceCache<T> Model<T>::make_cache(Index capacity) const {
  SequenceCache<T> cache;
  cache.layers.resize(static_cast<std::size_t>(deck_.model.layers));
  for (const auto& unit : at(0).units) {
    if (const auto* block = dynamic_cast<const CachedUnit<T>*>(unit.get())) block->add_cache(capacity, cache);
  }
  return cache;
}

template class Model<float>;
template class Model<double>;
template class Model<kernels::bf16>;

}  // namespace fourfold
