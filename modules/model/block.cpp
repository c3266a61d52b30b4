// Pre-norm transformer block:  h = x + attention(norm(x));  y = h + ffn(norm(h)), or a mixture of experts in
// place of ffn.
#include "deck/derive.hpp"
#include "kernels/vector.hpp"
#include "layers/attention.hpp"
#include "layers/norm.hpp"
#include "model/initializers.hpp"
#include "model/names.hpp"
#include "model/second_half.hpp"
#include "model/units.hpp"

namespace fourfold {

namespace {

template <class T>
class Block : public CachedUnit<T> {
 public:
  struct KeptTensors : Kept {
    typename Norm<T>::Kept attention_norm, ffn_norm;
    typename Attention<T>::Kept attention;
    typename SecondHalf<T>::Kept ffn;
    void hold(HeldBlocks& blocks) override {
      attention_norm.hold(blocks);
      ffn_norm.hold(blocks);
      attention.hold(blocks);
      ffn.hold(blocks);
    }
  };

  Block(const LayerContext<T>& context, const Deck& deck, Index layer)
      : CachedUnit<T>("layers." + std::to_string(layer)),
        context_(context),
        model_(deck.model),
        layer_(layer),
        attention_again_(runs_again(deck, layer, "attention")),
        ffn_again_(runs_again(deck, layer, "ffn")),
        attention_norm_(context, this->name() + ".attention_norm", norm_type(model_.norm), model_.hidden,
                        model_.norm_eps),
        attention_use_(uses(context)),
        attention_(context, this->name() + ".attention", attention_options(model_), initializers(deck)),
        ffn_norm_(context, this->name() + ".ffn_norm", norm_type(model_.norm), model_.hidden, model_.norm_eps),
        ffn_use_(uses(context)),
        ffn_(context, deck, layer, this->name()) {
    if (!attention_again_ && !ffn_again_) return;
    const Range unit{attention_use_, uses(context)};
    context.gathers.add_recompute({attention_again_ ? unit.begin : ffn_use_, ffn_again_ ? unit.end : ffn_use_}, unit);
  }

  Index input_cols() const override { return context_.part_of(model_.hidden, Axis::col).size(); }

  std::unique_ptr<Kept> forward(const PlannedPass<T>& pass, Tensor<T>& x, LossSum&) override {
    auto kept = pass.keeps() ? std::make_unique<KeptTensors>() : nullptr;
    typename Attention<T>::Pasts pasts;
    if (pass.caches != nullptr) {
      for (const SequenceCache<T>* cache : *pass.caches)
        pasts.push_back(&cache->layers[static_cast<std::size_t>(layer_)]);
    }
    KeptTensors* attention = attention_again_ ? nullptr : kept.get();
    KeptTensors* ffn = ffn_again_ ? nullptr : kept.get();
    const Tensor<T> normed = attention_norm_.forward(x, attention ? &attention->attention_norm : nullptr);
    const Tensor<T> attended =
        attention_.forward(pass.rows, normed, pasts, attention ? &attention->attention : nullptr);
    if (kept && attention_again_) kept->attention_norm.x = x;
    const Tensor<T> h = drop(pass, ".attention", attended);  // once the norm has added x
    const Tensor<T> normed_h = ffn_norm_.forward(x, h, ffn ? &ffn->ffn_norm : nullptr);
    const Tensor<T> fed = ffn_.forward(pass, normed_h, ffn ? &ffn->ffn : nullptr);
    if (kept && ffn_again_) kept->ffn_norm.x = h;
    x = add_residual(h, drop(pass, ".ffn", fed));
    return kept;
  }

  bool recomputes() const override { return attention_again_ || ffn_again_; }
  void recompute(const PlannedPass<T>& pass, Kept& base) override {
    auto& kept = static_cast<KeptTensors&>(base);
    if (attention_again_) {
      const Tensor<T> x = kept.attention_norm.x;
      attention_.forward(pass.rows, attention_norm_.forward(x, &kept.attention_norm), {}, &kept.attention);
    }
    if (ffn_again_) {
      const Tensor<T> h = kept.ffn_norm.x;
      ffn_.forward(pass, ffn_norm_.forward(h, &kept.ffn_norm), &kept.ffn);
    }
  }

  void backward_input(const PlannedPass<T>& pass, Kept& base, Tensor<T>& dx) override {
    auto& kept = static_cast<KeptTensors&>(base);
    const Tensor<T> dfed = ffn_.backward_input(pass, drop(pass, ".ffn", dx), kept.ffn);
    const Tensor<T> dh = ffn_norm_.backward_input(dfed, kept.ffn_norm, dx);
    const Tensor<T> dattended = attention_.backward_input(pass.rows, drop(pass, ".attention", dh), kept.attention);
    dx = attention_norm_.backward_input(dattended, kept.attention_norm, dh);
  }

  void backward_weight(const PlannedPass<T>&, Kept& base) override {
    auto& kept = static_cast<KeptTensors&>(base);
    ffn_.backward_weight(kept.ffn);
    ffn_norm_.backward_weight(kept.ffn_norm);
    attention_.backward_weight(kept.attention);
    attention_norm_.backward_weight(kept.attention_norm);
  }

  MoeLayer<T>* experts() override { return ffn_.experts(); }
  void add_cache(Index capacity, SequenceCache<T>& cache) const override {
    cache.layers[static_cast<std::size_t>(layer_)] = attention_.make_cache(capacity);
  }

 private:
  static AttentionOptions attention_options(const ModelDeck& model) {
    AttentionOptions options;
    options.width = model.hidden;
    options.heads = model.heads;
    options.kv_heads = model.kv_heads;
    options.head_dim = model.head_dim;
    options.qkv_bias = model.bias != BiasKind::none;
    options.output_bias = model.bias == BiasKind::all;
    options.rotary = model.positions == Positions::rope;
    options.angles = rotary_angles(model);
    return options;
  }
  static InitializerFor initializers(const Deck& deck) {
    return [&deck](const std::string& name, Index columns, bool residual) {
      return make_initializer(deck.model, deck.run.seed, name, columns, residual);
    };
  }

  // Whether the deck asks for this sublayer, where the block is not run again as a whole.
  static bool runs_again(const Deck& deck, Index layer, const std::string& sublayer) {
    return keeping_of_units(deck)[static_cast<std::size_t>(layer) + 1] != Keeping::recompute &&
           recomputes_sublayer(deck.parallel.activations, sublayer);
  }
  static Index uses(const LayerContext<T>& context) { return static_cast<Index>(context.gathers.size()); }

  Tensor<T> drop(const PlannedPass<T>& pass, const char* where, const Tensor<T>& x) const {
    return apply_dropout(context_, pass, this->name() + where, model_.dropout, model_.hidden, model_.sequence, x);
  }

  // branch + x. The branch's tensor is fresh, but for dropout off, where it is the layer's own output: nobody else's.
  Tensor<T> add_residual(const Tensor<T>& x, const Tensor<T>& branch) const {
    kernels::add<T>(Space(), x.vector(), branch.vector());
    return branch;
  }

  LayerContext<T> context_;
  ModelDeck model_;
  Index layer_;
  bool attention_again_, ffn_again_;
  Norm<T> attention_norm_;
  Index attention_use_;  // its first in the queue of gathers
  Attention<T> attention_;
  Norm<T> ffn_norm_;
  Index ffn_use_;
  SecondHalf<T> ffn_;
};

}  // namespace

template <class T>
std::unique_ptr<CachedUnit<T>> make_block(const LayerContext<T>& context, const Deck& deck, Index layer) {
  return std::make_unique<Block<T>>(context, deck, layer);
}

template std::unique_ptr<CachedUnit<float>> make_block(const LayerContext<float>&, const Deck&, Index);
template std::unique_ptr<CachedUnit<double>> make_block(const LayerContext<double>&, const Deck&, Index);
template std::unique_ptr<CachedUnit<kernels::bf16>> make_block(const LayerContext<kernels::bf16>&, const Deck&, Index);

}  // namespace fourfold
