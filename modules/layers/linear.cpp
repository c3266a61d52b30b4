#include "layers/linear.hpp"

#include <cmath>

#include "base/error.hpp"
#include "kernels/bias.hpp"
#include "kernels/gemm.hpp"
#include "kernels/vector.hpp"

namespace fourfold {

namespace {

std::string bias_name(const std::string& weight_name) {
  const std::string ending = ".weight";
  FOURFOLD_ASSERT(weight_name.ends_with(ending), "weights are called so: " + weight_name);
  return weight_name.substr(0, weight_name.size() - ending.size()) + ".bias";
}

}  // namespace

template <class T>
Linear<T>::Linear(const LayerContext<T>& context, std::shared_ptr<Weight<T>> weight, Orientation orientation)
    : context_(context),
      weight_(std::move(weight)),
      copy_in_(context.comms.group({orientation.out}), context.summation),
      sum_out_(context.comms.group({orientation.in}), context.summation) {}

template <class T>
Linear<T>::Linear(const LayerContext<T>& context, std::vector<Segment> segments, Index in_features,
                  const Options& options)
    : Linear(context,
             std::make_shared<Weight<T>>(context, segments, in_features,
                                         context.part_of(in_features, options.orientation.in)),
             options.orientation) {
  if (!options.bias) return;
  for (const Segment& segment : segments) {
    ParamSpec spec;
    spec.name = bias_name(segment.name);
    spec.shard = Shard{{segment.features}, {segment.held}, {0, segment.held.size()}};
    spec.sum_over = {Axis::data, Axis::depth};
    spec.owner = segment.owner && context.place(options.orientation.in) == 0;
    spec.init = [](std::int64_t) { return 0.0; };
    biases_.push_back(context.store.declare(std::move(spec)));
  }
}

template <class T>
void Linear<T>::check_range(double largest_product, Index terms, int bits, int ranks) const {
  // Every term is a multiple of 2^-bits; a double holds their sum exactly below 2^52 of them.
  const double units = largest_product * static_cast<double>(terms) * ranks * std::ldexp(1.0, bits);
  if (units >= 0x1.0p52) {
    fail_one(ExitCode::error,
             "numerics.snap: a product's sum may leave the range where fp64 is exact (2^52 units); "
             "use fewer steps, a smaller rate or fewer non-zeros");
  }
}

template <class T>
Tensor<T> Linear<T>::forward(const Tensor<T>& x, Kept* kept) const {
  const Space space;
  const UsableWeight<T> w = weight_->use(Phase::forward);
  Tensor<T> y(context_.pool, MemoryTag::activations, x.rows(), weight_->rows());
  kernels::linear_forward<T>(space, x.matrix(), w.matrix, y.matrix());
  if (context_.snap) {
    const double largest = kernels::max_abs<T>(space, x.vector()) *
                           kernels::max_abs<T>(space, kernels::Vector<const T>(w.matrix.data(), w.matrix.size()));
    check_range(largest, weight_->cols(), 2 * context_.snap->values, sum_out_.ranks());
  }
  sum_out_.forward(y);
  if (!biases_.empty()) {
    kernels::bias_forward<T>(space, kernels::Vector<const T>(biases_.front()->value.data(), weight_->rows()),
                             y.matrix());
  }
  if (context_.snap) kernels::snap<T>(space, context_.snap->values, y.vector());
  if (kept != nullptr) kept->x = x;
  return y;
}

template <class T>
Tensor<T> Linear<T>::backward_input(const Tensor<T>& dy, Kept& kept) const {
  const Space space;
  const UsableWeight<T> w = weight_->use(Phase::backward);
  Tensor<T> dx(context_.pool, MemoryTag::activations, dy.rows(), weight_->cols());
  kernels::linear_backward_input<T>(space, dy.matrix(), w.matrix, dx.matrix());
  if (context_.snap) {
    const double largest = kernels::max_abs<T>(space, dy.vector()) *
                           kernels::max_abs<T>(space, kernels::Vector<const T>(w.matrix.data(), w.matrix.size()));
    check_range(largest, weight_->rows(), context_.snap->values + context_.snap->gradients, copy_in_.ranks());
  }
  copy_in_.adjoint(dx);
  if (context_.snap) kernels::snap<T>(space, context_.snap->gradients, dx.vector());
  kept.dy = dy;
  return dx;
}

template <class T>
void Linear<T>::backward_weight(Kept& kept) const {
  const Space space;
  weight_->add_gradient([&](kernels::Matrix<kernels::Acc<T>> dw, kernels::Write write) {
    kernels::linear_backward_weight<T>(space, kept.dy.matrix(), kept.x.matrix(), dw, write);
  });
  if (!biases_.empty()) {
    kernels::bias_backward<T>(space, kept.dy.matrix(),
                              kernels::Vector<kernels::Acc<T>>(biases_.front()->grad.data(), weight_->rows()),
                              kernels::Write::add);
  }
  if (context_.snap) {
    const double largest = kernels::max_abs<T>(space, kept.dy.vector()) * kernels::max_abs<T>(space, kept.x.vector());
    check_range(largest, kept.x.rows(), context_.snap->values + context_.snap->gradients,
                context_.extent(Axis::depth) * context_.extent(Axis::data));
  }
  kept = Kept{};
}

template <class T>
Segment even_segment(const LayerContext<T>& context, std::string name, Index features, Axis out_axis,
                     Initializer init) {
  Segment segment;
  segment.name = std::move(name);
  segment.features = features;
  segment.held = context.part_of(features, out_axis);
  segment.init = std::move(init);
  return segment;
}

template class Linear<float>;
template class Linear<double>;
template Segment even_segment(const LayerContext<float>&, std::string, Index, Axis, Initializer);
template Segment even_segment(const LayerContext<double>&, std::string, Index, Axis, Initializer);

}  // namespace fourfold
