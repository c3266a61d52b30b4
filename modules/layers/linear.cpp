#include "layers/linear.hpp"

#include <utility>

#include "base/error.hpp"
#include "kernels/bias.hpp"
#include "kernels/gemm.hpp"
#include "kernels/vector.hpp"
#include "layers/exact.hpp"
#include "tensor/number.hpp"

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
      use_(weight_->register_use(context.gathers, options.input_gradient)),
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

// On the virtual clock the three products of a layer cost the same.
template <class T>
void Linear<T>::count_product(Index rows) const {
  const Index n = weight_->rows();
  const Index k = weight_->cols();
  context_.work(2 * rows * n * k, rows * k + n * k + rows * n);
}

template <class T>
kernels::Vector<const T> Linear<T>::bias() const {
  if (biases_.empty()) return {};
  return kernels::Vector<const T>(biases_.front()->use().data(), weight_->rows());
}

namespace {

template <class T>
kernels::Vector<const T> flat(const kernels::Matrix<const T>& matrix) {
  return kernels::Vector<const T>(matrix.data(), matrix.size());
}

}  // namespace

// From the ranks that updated it (optimizer.gather: lazy): then the product comes first.
template <class T>
bool Linear<T>::bias_is_arriving() const {
  return !biases_.empty() && !biases_.front()->arriving->done();
}

template <class T>
template <class C>
Tensor<C> Linear<T>::product(const Tensor<T>& x, const UsableWeight<T>& w, kernels::Vector<const T> bias) const {
  Tensor<C> y(context_.pool, MemoryTag::activations, x.rows(), weight_->rows());
  kernels::linear_forward<T, C>(Space(), x.matrix(), w.matrix, y.matrix(), bias);
  count_product(x.rows());
  return y;
}

template <class T>
Tensor<T> Linear<T>::forward(const Tensor<T>& input, Kept* kept, const Ends& ends) const {
  using A = kernels::Acc<T>;
  const Space space;
  const Tensor<T> x = ends.in != nullptr ? ends.in->gather(input, Phase::forward) : input;
  const UsableWeight<T> w = weight_->use(context_.gathers, use_, Phase::forward);
  const std::optional<Snap>& snap = context_.options.snap;
  if (snap) check_exact_sum<T>(x.vector(), flat(w.matrix), weight_->cols(), 2 * snap->values, sum_out_.ranks());
  Tensor<T> y;
  if (ends.out != nullptr) {
    // The bias once in the sum.
    const Tensor<A> partial = product<A>(x, w, first_of_in_axis_ ? bias() : kernels::Vector<const T>());
    y = rounded<T>(context_.pool, ends.out->scatter_sum(partial, Phase::forward));
  } else if (sum_out_.ranks() > 1 || bias_is_arriving()) {
    const Tensor<A> sum = product<A>(x, w, {});
    sum_out_.forward(sum);
    if (!biases_.empty()) kernels::bias_forward<T, A>(space, bias(), sum.matrix());
    y = rounded<T>(context_.pool, sum);
  } else {
    y = product<T>(x, w, bias());
  }
  if (snap) kernels::snap<T>(space, snap->values, y.vector());
  if (kept != nullptr) kept->x = x;
  return y;
}

// dx empty: made and written, else added to.
template <class T>
template <class C>
void Linear<T>::input_product(const Tensor<T>& dy, Tensor<C>& dx) const {
  const UsableWeight<T> w = weight_->use(context_.gathers, use_, Phase::backward);
  const bool fresh = dx.data() == nullptr;
  if (fresh) dx = Tensor<C>(context_.pool, MemoryTag::activations, dy.rows(), weight_->cols());
  kernels::linear_backward_input<T, C>(Space(), dy.matrix(), w.matrix, dx.matrix(),
                                       fresh ? kernels::Write::overwrite : kernels::Write::add);
  count_product(dy.rows());
  if (context_.options.snap) {
    check_exact_sum<T>(dy.vector(), flat(w.matrix), weight_->rows(),
                       context_.options.snap->values + context_.options.snap->gradients, copy_in_.ranks());
  }
}

template <class T>
void Linear<T>::partial_input_gradient(const Tensor<T>& output_gradient, Kept& kept, const LayoutGather<T>* out,
                                       Tensor<kernels::Acc<T>>& dx) const {
  const Tensor<T> dy = out != nullptr ? out->gather(output_gradient, Phase::backward) : output_gradient;
  keep_output_gradient(dy, kept);
  input_product(dy, dx);
}

template <class T>
Tensor<T> Linear<T>::backward_input(const Tensor<T>& output_gradient, Kept& kept, const Ends& ends) const {
  if (ends.in != nullptr || copy_in_.ranks() > 1) {
    Tensor<kernels::Acc<T>> partial;
    partial_input_gradient(output_gradient, kept, ends.out, partial);
    return finish_input_gradient(partial, ends.in, [&] { backward_weight(kept); });
  }
  const Tensor<T> dy = ends.out != nullptr ? ends.out->gather(output_gradient, Phase::backward) : output_gradient;
  keep_output_gradient(dy, kept);
  Tensor<T> dx;
  input_product(dy, dx);
  if (context_.options.snap) kernels::snap<T>(Space(), context_.options.snap->gradients, dx.vector());
  return dx;
}

template <class T>
Tensor<T> Linear<T>::finish_input_gradient(const Tensor<kernels::Acc<T>>& partial, const LayoutGather<T>* in,
                                           const std::function<void()>& meanwhile) const {
  Tensor<kernels::Acc<T>> sum = partial;
  Pending pending;
  if (in != nullptr) {
    std::tie(sum, pending) = in->start_scatter_sum(partial, Phase::backward);
  } else {
    pending = copy_in_.start_adjoint(sum);
  }
  if (context_.options.overlap && copy_in_.ranks() > 1 && !context_.deferred.weights_apart()) meanwhile();
  pending.wait();
  Tensor<T> dx = rounded<T>(context_.pool, sum);
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
  weight_->add_gradient(context_.gathers, [&](kernels::Matrix<kernels::Acc<T>> dw, kernels::Write write) {
    kernels::linear_backward_weight<T>(space, kept.dy.matrix(), kept.x.matrix(), dw, write);
    count_product(kept.dy.rows());
  });
  if (!biases_.empty()) {
    const kernels::Vector<kernels::Acc<T>> db(biases_.front()->grad.data(), weight_->rows());
    kernels::bias_backward<T>(space, kept.dy.matrix(), db, next_write(biases_));
  }
  if (context_.options.snap) {
    check_exact_sum<T>(kept.dy.vector(), kept.x.vector(), kept.x.rows(),
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
template class Linear<kernels::bf16>;
template Segment even_segment(const LayerContext<float>&, std::string, Index, Axis, Initializer);
template Segment even_segment(const LayerContext<double>&, std::string, Index, Axis, Initializer);
template Segment even_segment(const LayerContext<kernels::bf16>&, std::string, Index, Axis, Initializer);

}  // namespace fourfold
