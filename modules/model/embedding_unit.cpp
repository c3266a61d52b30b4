#include "kernels/dropout.hpp"

#include "base/random.hpp"
#include "layers/linear.hpp"
#include "model/initializers.hpp"
#include "model/units.hpp"

namespace fourfold {

template <class T>
Tensor<T> apply_dropout(const LayerContext<T>& context, const PlannedPass<T>& pass, const std::string& purpose,
                        double p, Index width, Index sequence, const Tensor<T>& x) {
  if (p == 0.0 || !pass.training) return x;
  const RandomStream stream = random_stream(context.options.seed, "dropout/" + purpose, pass.step);
  Tensor<T> y(context.pool, MemoryTag::activations, x.rows(), x.cols());
  for_each_range(pass.rows.stream, [&](Index first, Index count, Range range) {
    kernels::GlobalRows rows;
    rows.first_sample = pass.batch->first_sample;
    rows.tokens = range.size();
    rows.first_token = range.begin;
    rows.sequence = sequence;
    rows.first_col = context.part_of(width, Axis::col).begin;
    rows.width = width;
    kernels::dropout_forward<T>(Space(), row_block(x, first, count), stream, p, rows, row_block(y, first, count));
  });
  return y;
}

template Tensor<float> apply_dropout(const LayerContext<float>&, const PlannedPass<float>&, const std::string&, double,
                                     Index, Index, const Tensor<float>&);
template Tensor<double> apply_dropout(const LayerContext<double>&, const PlannedPass<double>&, const std::string&,
                                      double, Index, Index, const Tensor<double>&);

template Tensor<kernels::bf16> apply_dropout(const LayerContext<kernels::bf16>&, const PlannedPass<kernels::bf16>&,
                                             const std::string&, double, Index, Index, const Tensor<kernels::bf16>&);

namespace {

template <class T>
class EmbeddingUnit : public Unit<T> {
 public:
  struct KeptTensors : Kept {
    Tensor<T> dy;
    void hold(HeldBlocks& blocks) override { dy.hold(blocks); }
  };

  EmbeddingUnit(const LayerContext<T>& context, const Deck& deck, std::shared_ptr<Weight<T>> table)
      : Unit<T>("embedding"),
        context_(context),
        model_(deck.model),
        tokens_(context, std::move(table), deck.model.vocab) {
    if (model_.kind == ModelKind::transformer && model_.positions == Positions::learned) {
      positions_ = std::make_unique<LearnedPositions<T>>(
          context, "embedding.position", model_.sequence, model_.hidden,
          make_initializer(model_, deck.run.seed, "embedding.position", model_.hidden, false));
    }
  }

  Index input_cols() const override { return 0; }

  std::unique_ptr<Kept> forward(const PlannedPass<T>& pass, Tensor<T>& x, LossSum&) override {
    const auto over_row = pass.rows.over_row(context_, tokens_.weight().cols());
    x = tokens_.forward(pass.batch->ids, over_row.get());
    if (positions_) positions_->forward(pass.rows.stream, pass.rows.stream_positions, x);
    x = apply_dropout(context_, pass, "embedding", model_.dropout, model_.hidden, model_.sequence, x);
    return pass.keeps() ? std::make_unique<KeptTensors>() : nullptr;
  }

  void backward_input(const PlannedPass<T>& pass, Kept& kept, Tensor<T>& dx) override {
    // The mask is drawn again: dropout is its own adjoint.
    static_cast<KeptTensors&>(kept).dy =
        apply_dropout(context_, pass, "embedding", model_.dropout, model_.hidden, model_.sequence, dx);
    dx = Tensor<T>();
  }

  void backward_weight(const PlannedPass<T>& pass, Kept& kept) override {
    const Tensor<T>& dy = static_cast<KeptTensors&>(kept).dy;
    const auto over_row = pass.rows.over_row(context_, dy.cols());
    tokens_.backward_weight(pass.batch->ids, dy, over_row.get());
    if (positions_) positions_->backward_weight(pass.rows.stream, pass.rows.stream_positions, dy);
  }

 private:
  LayerContext<T> context_;
  ModelDeck model_;
  Embedding<T> tokens_;
  std::unique_ptr<LearnedPositions<T>> positions_;
};

}  // namespace

template <class T>
std::shared_ptr<Weight<T>> make_embedding_table(const LayerContext<T>& context, const Deck& deck,
                                                const StagePart& part) {
  const ModelDeck& model = deck.model;
  const std::string name = "embedding.token";
  Initializer init = model.init.zero_head && model.tie_embeddings
                         ? constant_initializer(0)
                         : make_initializer(model, deck.run.seed, name, model.hidden, false);
  Segment table = even_segment(context, name, model.vocab, Axis::row, std::move(init));
  table.tied_stage = part.tied_across_grids ? 0 : part.tied_stage;
  table.owner = part.first || !part.tied_across_grids;
  return std::make_shared<Weight<T>>(context, std::vector{std::move(table)}, model.hidden,
                                     context.part_of(model.hidden, Axis::col));
}

template <class T>
std::unique_ptr<Unit<T>> make_embedding_unit(const LayerContext<T>& context, const Deck& deck,
                                             std::shared_ptr<Weight<T>> table) {
  return std::make_unique<EmbeddingUnit<T>>(context, deck, std::move(table));
}

template std::shared_ptr<Weight<float>> make_embedding_table(const LayerContext<float>&, const Deck&, const StagePart&);
template std::shared_ptr<Weight<double>> make_embedding_table(const LayerContext<double>&, const Deck&,
                                                              const StagePart&);
template std::shared_ptr<Weight<kernels::bf16>> make_embedding_table(const LayerContext<kernels::bf16>&, const Deck&,
                                                                     const StagePart&);
template std::unique_ptr<Unit<float>> make_embedding_unit(const LayerContext<float>&, const Deck&,
                                                          std::shared_ptr<Weight<float>>);
template std::unique_ptr<Unit<kernels::bf16>> make_embedding_unit(const LayerContext<kernels::bf16>&, const Deck&,
                                                                  std::shared_ptr<Weight<kernels::bf16>>);
template std::unique_ptr<Unit<double>> make_embedding_unit(const LayerContext<double>&, const Deck&,
                                                           std::shared_ptr<Weight<double>>);

}  // namespace fourfold
