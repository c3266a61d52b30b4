// Head: final norm, projection to the vocabulary (with the embedding's matrix when tied), loss.
#include "base/error.hpp"
#include "kernels/vector.hpp"
#include "layers/linear.hpp"
#include "layers/loss.hpp"
#include "layers/norm.hpp"
#include "model/initializers.hpp"
#include "model/names.hpp"
#include "model/units.hpp"

namespace fourfold {

namespace {

template <class T>
Linear<T> make_projection(const LayerContext<T>& context, const Deck& deck, std::shared_ptr<Weight<T>> table) {
  if (table) return Linear<T>(context, std::move(table), Orientation{});
  const ModelDeck& model = deck.model;
  const std::string name = "head.weight";
  Initializer init = model.init.zero_head ? constant_initializer(0)
                                          : make_initializer(model, deck.run.seed, name, model.hidden, false);
  return Linear<T>(context, {even_segment(context, name, model.vocab, Axis::row, std::move(init))}, model.hidden,
                   {Orientation{}, false, true});
}

template <class T>
class Head : public HeadUnit<T> {
 public:
  struct KeptTensors : Kept {
    typename Norm<T>::Kept norm;
    typename Linear<T>::Kept projection;
    typename Loss<T>::Kept loss;
    void hold(HeldBlocks& blocks) override {
      norm.hold(blocks);
      projection.hold(blocks);
      loss.hold(blocks);
    }
  };

  Head(const LayerContext<T>& context, const Deck& deck, std::shared_ptr<Weight<T>> table)
      : HeadUnit<T>("head"),
        context_(context),
        norm_(deck.model.kind == ModelKind::transformer
                  ? std::make_unique<Norm<T>>(context, "final_norm", norm_type(deck.model.norm), deck.model.hidden,
                                              deck.model.norm_eps)
                  : nullptr),
        projection_(make_projection(context, deck, std::move(table))),
        loss_(context,
              deck.model.loss == LossKind::cross_entropy ? LossType::cross_entropy : LossType::squared_error_onehot,
              deck.model.vocab, Axis::row) {}

  Index input_cols() const override { return projection_.weight()->cols(); }

  std::unique_ptr<Kept> forward(const PlannedPass<T>& pass, Tensor<T>& x, LossSum& loss) override {
    auto kept = pass.keeps() ? std::make_unique<KeptTensors>() : nullptr;
    if (norm_) x = norm_->forward(x, kept ? &kept->norm : nullptr);
    const auto over_row = pass.rows.over_row(context_, x.cols());
    const Tensor<T> logits = projection_.forward(x, kept ? &kept->projection : nullptr, {over_row.get(), nullptr});
    loss = loss_.forward(pass, logits, kept ? &kept->loss : nullptr);
    x = Tensor<T>();
    return kept;
  }

  void backward_input(const PlannedPass<T>& pass, Kept& base, Tensor<T>& dx) override {
    auto& kept = static_cast<KeptTensors&>(base);
    const auto over_row = pass.rows.over_row(context_, projection_.weight()->cols());
    dx = projection_.backward_input(loss_.backward(pass, kept.loss), kept.projection, {over_row.get(), nullptr});
    if (norm_) dx = norm_->backward_input(dx, kept.norm);
  }

  void backward_weight(const PlannedPass<T>&, Kept& base) override {
    auto& kept = static_cast<KeptTensors&>(base);
    projection_.backward_weight(kept.projection);
    if (norm_) norm_->backward_weight(kept.norm);
  }

  Tensor<T> logits(const PlannedPass<T>& pass, const Tensor<T>& x, const std::vector<Index>& rows) const override {
    Tensor<T> normed = norm_ ? norm_->forward(x, nullptr) : x;
    const auto over_row = pass.rows.over_row(context_, x.cols());
    if (over_row) normed = over_row->gather(normed, Phase::forward);
    const auto count = static_cast<Index>(rows.size());
    Tensor<T> some(context_.pool, MemoryTag::activations, count, normed.cols());
    for (Index i = 0; i < count;) {  // runs of rows that follow one another
      const Index first = rows[static_cast<std::size_t>(i)];
      Index run = 1;
      while (i + run < count && rows[static_cast<std::size_t>(i + run)] == first + run) ++run;
      FOURFOLD_ASSERT(first >= 0 && first + run <= normed.rows(), "logits are asked for rows that exist");
      kernels::copy_columns<T>(Space(), row_block(normed, first, run), 0, normed.cols(), row_block(some, i, run), 0);
      i += run;
    }
    return projection_.forward(some, nullptr);
  }

  Range held() const override { return loss_.held(); }

 private:
  LayerContext<T> context_;
  std::unique_ptr<Norm<T>> norm_;
  Linear<T> projection_;
  Loss<T> loss_;
};

}  // namespace

template <class T>
std::unique_ptr<HeadUnit<T>> make_head(const LayerContext<T>& context, const Deck& deck,
                                       std::shared_ptr<Weight<T>> table) {
  return std::make_unique<Head<T>>(context, deck, std::move(table));
}

template std::unique_ptr<HeadUnit<float>> make_head(const LayerContext<float>&, const Deck&,
                                                    std::shared_ptr<Weight<float>>);
template std::unique_ptr<HeadUnit<kernels::bf16>> make_head(const LayerContext<kernels::bf16>&, const Deck&,
                                                            std::shared_ptr<Weight<kernels::bf16>>);
template std::unique_ptr<HeadUnit<double>> make_head(const LayerContext<double>&, const Deck&,
                                                     std::shared_ptr<Weight<double>>);

}  // namespace fourfold
