// The second half of a block, between its norm and the residual: a feed-forward layer, or a mixture of experts.
#pragma once

#include <memory>
#include <string>

#include "deck/deck.hpp"
#include "layers/feed_forward.hpp"
#include "layers/moe/moe.hpp"

namespace fourfold {

template <class T>
class SecondHalf {
 public:
  struct Kept {
    typename FeedForward<T>::Kept dense;
    typename MoeLayer<T>::Kept moe;
    void hold(HeldBlocks& blocks) {
      dense.hold(blocks);
      moe.hold(blocks);
    }
  };

  // Of block `layer`, whose name is `block`: parameters are called block + ".ffn.*" or ".moe.*". input_gradient: false
  // where nobody needs it.
  SecondHalf(const LayerContext<T>& context, const Deck& deck, Index layer, const std::string& block,
             bool input_gradient = true);

  Index input_cols() const { return moe_ ? moe_->input_cols() : dense_->input_cols(); }
  Tensor<T> forward(const PlannedPass<T>& pass, const Tensor<T>& x, Kept* kept) const;
  Tensor<T> backward_input(const PlannedPass<T>& pass, const Tensor<T>& dy, Kept& kept) const;
  void backward_weight(Kept& kept) const;
  MoeLayer<T>* experts() const { return moe_.get(); }  // null: a feed-forward layer

 private:
  std::unique_ptr<FeedForward<T>> dense_;
  std::unique_ptr<MoeLayer<T>> moe_;
};

}  // namespace fourfold
