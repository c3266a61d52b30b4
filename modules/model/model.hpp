// The model of a deck, cut over the dense grid: a list of units (embedding, blocks, head; the matrices of an MLP; the
// blocks of a residual stack), of which a stage of a pipeline has some, in chunks that follow each other.
// Backward is split as zero-bubble schedules need it: input gradients first, weight gradients from what was kept.
#pragma once

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "comm/grid_comms.hpp"
#include "deck/deck.hpp"
#include "layers/pass.hpp"
#include "layers/unit.hpp"
#include "layers/weight.hpp"
#include "model/stage_part.hpp"
#include "tensor/param.hpp"

namespace fourfold {

// What a micro-batch keeps of a chunk between forward and backward: one entry a unit. A unit that recomputes
// (parallel.activations) has its input alone until its backward.
template <class T>
struct Activations {
  struct OfUnit {
    Tensor<T> input;
    std::unique_ptr<Kept> kept;
  };
  std::vector<OfUnit> units;
};

template <class T>
class Model {
 public:
  // Collective over the stage's ranks, and where embeddings are tied over two stages over both, only in what `comms`
  // already holds: makes no communicator. Parameters are allocated and initialised. `deck` must have passed the
  // reader's checks.
  Model(const Deck& deck, const GridComms& comms, Pool& pool, const StagePart& part);
  Model(const Deck& deck, const GridComms& comms, Pool& pool) : Model(deck, comms, pool, whole_model(deck.model)) {}
  ~Model();

  ParamStore<T>& params() { return store_; }
  const Deck& deck() const { return deck_; }

  // --- chunk by chunk, counted from 0 on this stage ---

  int chunks() const { return static_cast<int>(chunks_.size()); }
  Index input_cols(int chunk) const;             // 0: it begins the model
  Index stream_rows(const Pass<T>& pass) const;  // of what goes from chunk to chunk
  // x: the chunk's input (nothing where it begins the model). Returns its output, nothing after the loss, which is then
  // in `loss`. pass.training: fills `kept` for backward.
  Tensor<T> forward(int chunk, const Pass<T>& pass, Tensor<T> x, Activations<T>& kept, LossSum& loss);
  // dx: the gradient of the output (nothing after the loss). Returns that of the input (nothing at the beginning) of
  // loss_scale x (sum of losses), and adds to every Param's grad, unit by unit from the last to the first; what a unit
  // kept is freed as soon as its weight gradients are made.
  Tensor<T> backward(int chunk, const Pass<T>& pass, Activations<T>& kept, Tensor<T> dx);
  // What of a forward pass is to be away until the backward. Each block is held by `kept` alone.
  HeldBlocks offloaded(int chunk, Activations<T>& kept) const;
  // The same in two halves.
  Tensor<T> backward_input(int chunk, const Pass<T>& pass, Activations<T>& kept, Tensor<T> dx);
  void backward_weight(int chunk, const Pass<T>& pass, Activations<T>& kept);

  // From here to the release the chunk's weights are whole over depth. Their gradients meanwhile too:
  // scatter_gradients() then brings each rank its shard.
  void gather_weights(int chunk, Phase phase);
  void release_weights(int chunk);
  void scatter_gradients(int chunk);

  // The mixtures of experts of this stage, by number of their block.
  std::vector<std::pair<Index, MoeLayer<T>*>> expert_layers() const;

  // --- a model in one chunk ---

  LossSum forward(const Pass<T>& pass, Activations<T>& kept);
  void backward(const Pass<T>& pass, Activations<T>& kept);

  // --- generation, on a stage of one chunk ---

  // x: what came from the stage before (nothing on the first). Returns what goes to the next one; on the last the
  // logits of some rows of the coordinate, as many x V, the whole vocabulary on every rank. No loss. With pass.caches
  // the caches grow by the rows.
  Tensor<T> extend(const Pass<T>& pass, Tensor<T> x, const std::vector<Index>& rows);
  SequenceCache<T> make_cache(Index capacity) const;  // of one sequence, for this stage's layers

 private:
  struct Chunk {
    Chunk(const LayerContext<T>& shared);
    GatherQueue<T> gathers;
    LayerContext<T> context;
    Index first_unit = 0;  // of the model
    std::vector<std::unique_ptr<Unit<T>>> units;
    std::vector<Keeping> keeping;  // by unit
  };
  Chunk& at(int chunk) { return chunks_[static_cast<std::size_t>(chunk)]; }
  const Chunk& at(int chunk) const { return chunks_[static_cast<std::size_t>(chunk)]; }
  PlannedPass<T> plan(const Pass<T>& pass) const;
  void build(const StagePart& part);
  std::unique_ptr<Unit<T>> make_unit(const LayerContext<T>& context, Index unit,
                                     std::shared_ptr<Weight<T>> table) const;
  // What forward did not keep of unit i, made again.
  void recompute(Chunk& chunk, std::size_t i, const PlannedPass<T>& pass, typename Activations<T>::OfUnit& entry);

  Deck deck_;
  const GridComms& comms_;
  Pool& pool_;
  ParamStore<T> store_;
  Deferred deferred_;
  LayerOptions options_;
  std::deque<Chunk> chunks_;  // addresses stay
};

}  // namespace fourfold
