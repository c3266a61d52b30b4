// The experts that every token goes to: one feed-forward on the dense grid, of their widths together, and with a gate
// each token's part of it times sigmoid(<x, w>).
#pragma once

#include <string>

#include "layers/feed_forward.hpp"
#include "layers/moe/options.hpp"

namespace fourfold {

template <class T>
class SharedExperts {
 public:
  using A = kernels::Acc<T>;
  struct Kept {
    typename FeedForward<T>::Kept feed_forward;
    Tensor<T> x, y, dlogit;  // with a gate
    Tensor<A> logit;
    void hold(HeldBlocks& blocks) {
      feed_forward.hold(blocks);
      x.hold(blocks);
      y.hold(blocks);
      logit.hold(blocks);
    }
  };

  SharedExperts(const LayerContext<T>& context, const std::string& name, const MoeOptions& options,
                const InitializerFor& init);

  // x: rows of the stream x D/col, as is y, to which the output is added; so is dx.
  void add_forward(const RowPlan<T>& rows, const Tensor<T>& x, const Tensor<T>& y, Kept* kept) const;
  void add_backward_input(const RowPlan<T>& rows, const Tensor<T>& dy, const Tensor<T>& dx, Kept& kept) const;
  void backward_weight(Kept& kept) const;

 private:
  kernels::Matrix<const T> gate() const;

  LayerContext<T> context_;
  FeedForward<T> feed_forward_;
  Param<T>* gate_ = nullptr;  // [1, D], its columns cut over col
};

}  // namespace fourfold
