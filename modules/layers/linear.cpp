#include "layers/linear.hpp"

#include <utility>

#include "base/error.hpp"
#include "base/snap.hpp"
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
Linear<T>::Linear(const LayerContext<T>& context, std::shared_ptr<Weight<T>> weight, const Options& options)
    : context_(context),
      weight_(std::move(weight)),
      use_(weight_->register_use(options.input_gradient)),
      first_of_in_axis_(context.place(options.orientation.in) == 0),
      copy_in_(context.comms.group(AxisSet{options.orientation.out}), context.options.summation),
      sum_out_(context.comms.group(AxisSet{options.orientation.in}), context.options.summation) {}

template <class T>
Linear<T>::Linear(const LayerContext<T>& context, std::shared_ptr<Weight<T>> weight, Orientation orientation)
    : Linear(context, std::move(weight), Options{orientation, false, true}) {}

template <class T>
Linear<T>::Linear(const LayerContext<T>& context, std::vector<Segment> segments, Index in_features,
                  const Options& options)
    : Linear(context,
             std::make_shared<Weight<T>>(context, segments, in_features,
                                         context.part_of(in_features, options.orientation.in)),
             options) {
  if (!options.bias) return;
  for (const Segment& segment : segments) {
    ParamSpec spec;
    spec.name = bias_name(segment.name);
    spec.shard = Shard{{segment.features}, {segment.held}, {0, segment.held.size()}};
    spec.sum_over = GroupKey({Axis::data, Axis::depth}, segment.sharers);
    spec.owner = first_of_in_axis_;
    spec.init = constant_initializer(0);
    biases_.push_back(context.store.declare(std::move(spec)));
  }
}

template <class T>
void Linear<T>::check_range(kernels::Vector<const T> a, kernels::Vector<const T> b, Index terms, int bits,
                            int ranks) const {
  // Every term is a multiple of 2^-bits.
  const Space space;
  const double largest = kernels::max_abs<T>(space, a) * kernels::max_abs<T>(space, b);
  if (largest * static_cast<double>(terms) * ranks >= exact_limit(bits)) {
    fail_one(ExitCode::error,
             "numerics.snap: the sum of a product may leave the range in which fp64 is exact (2^52 units); use fewer "
             "steps, a smaller rate or fewer non-zeros");
  }
}

// On the virtual clock the three products of a layer cost the same.
template <class T>
void Linear<T>::count_product(Index rows) const {
  const Index n = weight_->rows();
  const Index k = weight_->cols();
  context_.work(2 * rows * n * k, rows * k + n * k + rows * n);
}

template <class T>
void Linear<T>::add_bias(const Tensor<T>& y) const {
  if (biases_.empty()) return;
  kernels::bias_forward<T>(Space(), kernels::Vector<const T>(biases_.front()->use().data(), weight_->rows()),
                           y.matrix());
}

namespace {

template <class T>
kernels::Vector<const T> flat(const kernels::Matrix<const T>& matrix) {
  return kernels::Vector<const T>(matrix.data(), matrix.size());
}

}  // namespace

template <class T>
Tensor<T> Linear<T>::forward(const Tensor<T>& input, Kept* kept, const Ends& ends) const {
  const Space space;
  const Tensor<T> x = ends.in != nullptr ? ends.in->gather(input, Phase::forward) : input;
  const UsableWeight<T> w = weight_->use(use_, Phase::forward);
  Tensor<T> y(context_.pool, MemoryTag::activations, x.rows(), weight_->rows());
  kernels::linear_forward<T>(space, x.matrix(), w.matrix, y.matrix());
  count_product(x.rows());
  const std::optional<Snap>& snap = context_.options.snap;
  if (snap) check_range(x.vector(), flat(w.matrix), weight_->cols(), 2 * snap->values, sum_out_.ranks());
  if (ends.out != nullptr) {
    if (first_of_in_axis_) add_bias(y);  // once in the sum
    y = ends.out->scatter_sum(y, Phase::forward);
  } else {
    sum_out_.forward(y);
    add_bias(y);
  }
  if (snap) kernels::snap<T>(space, snap->values, y.vector());
  if (kept != nullptr) kept->x = x;
  return y;
}

template <class T>
Tensor<T> Linear<T>::backward_input(const Tensor<T>& output_gradient, Kept& kept, const Ends& ends) const {
  const Tensor<T> dy = ends.out != nullptr ? ends.out->gather(output_gradient, Phase::backward) : output_gradient;
  keep_output_gradient(dy, kept);
  const UsableWeight<T> w = weight_->use(use_, Phase::backward);
  Tensor<T> dx(context_.pool, MemoryTag::activations, dy.rows(), weight_->cols());
  kernels::linear_backward_input<T>(Space(), dy.matrix(), w.matrix, dx.matrix());
  count_product(dy.rows());
  if (context_.options.snap) {
    check_range(dy.vector(), flat(w.matrix), weight_->rows(),
                context_.options.snap->values + context_.options.snap->gradients, copy_in_.ranks());
  }
  if (ends.shared_input) return dx;
  return finish_input_gradient(dx, ends.in, [&] { backward_weight(kept); });
}

template <class T>
Tensor<T> Linear<T>::finish_input_gradient(const Tensor<T>& partial, const LayoutGather<T>* in,
                                           const std::function<void()>& meanwhile) const {
  Tensor<T> dx = partial;
  Pending sum;
  if (in != nullptr) {
    std::tie(dx, sum) = in->start_scatter_sum(partial, Phase::backward);
  } else {
    sum = copy_in_.start_adjoint(dx);
  }
  if (context_.options.overlap && copy_in_.ranks() > 1) meanwhile();
  sum.wait();
  if (context_.options.snap) kernels::snap<T>(Space(), context_.options.snap->gradients, dx.vector());
  return dx;
}

template <class T>
void Linear<T>::keep_output_gradient(const Tensor<T>& dy, Kept& kept) const {
  kept.dy = dy;
  kept.weight_due = true;
}

template <class T>
void Linear<T>::backward_weight(Kept& kept) const {
  if (!kept.weight_due) return;
  const Space space;
  weight_->add_gradient([&](kernels::Matrix<kernels::Acc<T>> dw, kernels::Write write) {
    kernels::linear_backward_weight<T>(space, kept.dy.matrix(), kept.x.matrix(), dw, write);
    count_product(kept.dy.rows());
  });
  if (!biases_.empty()) {
    kernels::bias_backward<T>(space, kept.dy.matrix(),
                              kernels::Vector<kernels::Acc<T>>(biases_.front()->grad.data(), weight_->rows()),
                              kernels::Write::add);
  }
  if (context_.options.snap) {
    check_range(kept.dy.vector(), kept.x.vector(), kept.x.rows(),
                context_.options.snap->values + context_.options.snap->gradients,
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
