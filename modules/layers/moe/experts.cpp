#include "layers/moe/experts.hpp"

#include "base/error.hpp"
#include "kernels/bias.hpp"
#include "kernels/expert_rows.hpp"
#include "kernels/gemm.hpp"
#include "kernels/vector.hpp"
#include "layers/exact.hpp"
#include "tensor/number.hpp"

namespace fourfold {

template <class T>
Experts<T>::Experts(const LayerContext<T>& context, const std::string& name, const MoeOptions& options,
                    const ExpertPlaces& places, const InitializerFor& init)
    : context_(context),
      activation_(options.activation),
      bias_(options.bias),
      width_(context.part_of(options.width, Axis::moe_col).size()),
      hidden_(context.part_of(options.hidden, Axis::moe_row).size()),
      up_rows_(options.activation == ActivationType::swiglu ? 2 * hidden_ : hidden_),
      places_(places) {
  const Range cols = context.part_of(options.width, Axis::moe_col);
  const Range rows = context.part_of(options.hidden, Axis::moe_row);
  const Range held = places.of_rank(context.place(Axis::expert));
  // A matrix, or a vector where in_features is 0. Elsewhere: nothing of it.
  const auto declare = [&](bool here, const std::string& param, Index features, Range of_features, Index in_features,
                           Range of_in, bool owner, bool residual) {
    ParamSpec spec;
    spec.name = param;
    spec.shard.shape = {features};
    spec.shard.box = {here ? of_features : Range{}};
    if (in_features > 0) {
      spec.shard.shape.push_back(in_features);
      spec.shard.box.push_back(here ? of_in : Range{});
    }
    spec.shard.flat = {0, here ? box_size(spec.shard.box) : 0};
    spec.sum_over = AxisSet{Axis::replica};
    spec.owner = owner;
    spec.init = in_features > 0 ? init(param, in_features, residual) : constant_initializer(0);
    return context.store.declare(std::move(spec));
  };
  const bool first_row = context.place(Axis::moe_row) == 0;
  const bool first_col = context.place(Axis::moe_col) == 0;
  const std::vector<std::string> ups = options.activation == ActivationType::swiglu
                                           ? std::vector<std::string>{".gate", ".up"}
                                           : std::vector<std::string>{".up"};
  for (Index e = 0; e < places.experts(); ++e) {
    const Index place = places.place_of()[static_cast<std::size_t>(e)];
    const bool here = place >= held.begin && place < held.end;
    const std::string expert = name + "." + std::to_string(e);
    Expert params;
    for (const std::string& up : ups) {
      params.up.push_back(
          declare(here, expert + up + ".weight", options.hidden, rows, options.width, cols, true, false));
    }
    params.down = {declare(here, expert + ".down.weight", options.width, cols, options.hidden, rows, true, true)};
    if (options.bias) {
      for (const std::string& up : ups)
        params.up_bias.push_back(declare(here, expert + up + ".bias", options.hidden, rows, 0, {}, first_col, false));
      params.down_bias = {declare(here, expert + ".down.bias", options.width, cols, 0, {}, first_row, false)};
    }
    experts_.push_back(std::move(params));
  }
}

namespace {

// Parameters that lie side by side, as one.
template <class T>
kernels::Vector<const T> values_of(const std::vector<Param<T>*>& params, Index size) {
  Index next = params.front()->group_offset;
  for (const Param<T>* param : params) {
    FOURFOLD_ASSERT(param->group_offset == next, "fused weights lie side by side");
    next += param->spec.shard.size();
  }
  FOURFOLD_ASSERT(next - params.front()->group_offset == size, "the expert's weights are here");
  return kernels::Vector<const T>(params.front()->use().data(), size);
}

template <class T>
kernels::Matrix<const T> matrix_of(const std::vector<Param<T>*>& params, Index rows, Index cols) {
  return kernels::Matrix<const T>(values_of(params, rows * cols).data(), rows, cols);
}

template <class T>
kernels::Matrix<T> rows_of(const Tensor<T>& x, Range rows) {
  return row_block(x, rows.begin, rows.size());
}

}  // namespace

template <class T>
template <class F>
void Experts<T>::for_each_expert(const std::vector<Index>& begin, const F& f) const {
  const Range held = places_.of_rank(context_.place(Axis::expert));
  auto rows = begin.begin();
  for (Index place = held.begin; place < held.end; ++place, ++rows)
    f(experts_[static_cast<std::size_t>(places_.expert_at(place))], Range{rows[0], rows[1]});
}

template <class T>
std::vector<Param<T>*> Experts<T>::params(Index expert) const {
  const Expert& its = experts_[static_cast<std::size_t>(expert)];
  std::vector<Param<T>*> all;
  for (const auto* list : {&its.up, &its.down, &its.up_bias, &its.down_bias})
    all.insert(all.end(), list->begin(), list->end());
  return all;
}

template <class T>
void Experts<T>::count_products(const std::vector<Index>& begin, Index rows, Index cols) const {
  for_each_expert(begin, [&](const Expert&, Range held) {
    context_.work(2 * held.size() * rows * cols, held.size() * (rows + cols) + rows * cols);
  });
}

template <class T>
Tensor<typename Experts<T>::A> Experts<T>::forward(const std::vector<Index>& begin, const Tensor<T>& x,
                                                   const Tensor<A>& weights, Kept* kept) const {
  const Space space;
  Pool& pool = context_.pool;
  const Communicator& col = context_.comms.group({Axis::moe_col});
  const std::optional<Snap>& snap = context_.options.snap;
  Tensor<A> sum(pool, MemoryTag::activations, x.rows(), up_rows_);
  for_each_expert(begin, [&](const Expert& expert, Range rows) {
    const auto w = matrix_of<T>(expert.up, up_rows_, width_);
    if (snap) check_exact_sum<T>(x.vector(), values_of<T>(expert.up, w.size()), width_, 2 * snap->values, col.size());
    kernels::linear_forward<T, A>(space, rows_of(x, rows), w, rows_of(sum, rows));
  });
  count_products(begin, up_rows_, width_);
  sum_over<A>(col, sum, context_.options.summation, Phase::forward);
  if (bias_) {
    for_each_expert(begin, [&](const Expert& expert, Range rows) {
      kernels::bias_forward<T, A>(space, values_of<T>(expert.up_bias, up_rows_), rows_of(sum, rows));
    });
  }
  const Tensor<T> up = rounded<T>(pool, sum);
  if (snap) kernels::snap<T>(space, snap->values, up.vector());
  const Tensor<T> hidden = activate(pool, activation_, up);
  if (weights.cols() > 0) {
    kernels::weigh_rows_forward<T>(space, hidden.matrix(), weights.vector(), hidden.matrix());
    if (snap) kernels::snap<T>(space, snap->values, hidden.vector());
  }

  Tensor<A> y(pool, MemoryTag::activations, x.rows(), width_);
  const bool adds_bias = bias_ && context_.place(Axis::moe_row) == 0;
  for_each_expert(begin, [&](const Expert& expert, Range rows) {
    const auto w = matrix_of<T>(expert.down, width_, hidden_);
    const auto bias = adds_bias ? values_of<T>(expert.down_bias, width_) : kernels::Vector<const T>();
    if (snap) {
      check_exact_sum<T>(hidden.vector(), values_of<T>(expert.down, w.size()), hidden_, 2 * snap->values,
                         context_.extent(Axis::moe_row));
    }
    kernels::linear_forward<T, A>(space, rows_of(hidden, rows), w, rows_of(y, rows), bias);
  });
  count_products(begin, width_, hidden_);
  if (kept != nullptr) *kept = Kept{x, up, hidden, {}, {}, begin};
  return y;
}

template <class T>
Tensor<typename Experts<T>::A> Experts<T>::backward_input(const Tensor<T>& dy, const Tensor<A>& weights, Kept& kept,
                                                          Tensor<A>* dweights) const {
  const Space space;
  Pool& pool = context_.pool;
  const std::optional<Snap>& snap = context_.options.snap;
  const int bits = snap ? snap->values + snap->gradients : 0;
  const Communicator& col = context_.comms.group({Axis::moe_col});
  Tensor<A> sum(pool, MemoryTag::activations, dy.rows(), hidden_);
  for_each_expert(kept.begin, [&](const Expert& expert, Range rows) {
    const auto w = matrix_of<T>(expert.down, width_, hidden_);
    if (snap) check_exact_sum<T>(dy.vector(), values_of<T>(expert.down, w.size()), width_, bits, col.size());
    kernels::linear_backward_input<T, A>(space, rows_of(dy, rows), w, rows_of(sum, rows));
  });
  count_products(kept.begin, width_, hidden_);
  sum_over<A>(col, sum, context_.options.summation, Phase::backward);
  const Tensor<T> dhidden = rounded<T>(pool, sum);
  if (weights.cols() > 0) {
    *dweights = Tensor<A>(pool, MemoryTag::activations, dy.rows(), 1);
    const Tensor<T> hidden = activate(pool, activation_, kept.up);
    kernels::weigh_rows_backward<T>(space, hidden.matrix(), weights.vector(), dhidden.matrix(), dhidden.matrix(),
                                    dweights->vector());
  }
  if (snap) kernels::snap<T>(space, snap->gradients, dhidden.vector());
  kept.dup = activate_backward(pool, activation_, kept.up, dhidden);
  kept.up = Tensor<T>();
  kept.dy = dy;

  Tensor<A> dx(pool, MemoryTag::activations, dy.rows(), width_);
  for_each_expert(kept.begin, [&](const Expert& expert, Range rows) {
    const auto w = matrix_of<T>(expert.up, up_rows_, width_);
    if (snap) {
      check_exact_sum<T>(kept.dup.vector(), values_of<T>(expert.up, w.size()), up_rows_, bits,
                         context_.extent(Axis::moe_row));
    }
    kernels::linear_backward_input<T, A>(space, rows_of(kept.dup, rows), w, rows_of(dx, rows));
  });
  count_products(kept.begin, up_rows_, width_);
  return dx;
}

template <class T>
void Experts<T>::backward_weight(Kept& kept) const {
  const Space space;
  const auto product = [&](const std::vector<Param<T>*>& params, const std::vector<Param<T>*>& biases,
                           const Tensor<T>& dy, const Tensor<T>& x, Range rows) {
    const kernels::Matrix<A> dw(params.front()->grad.data(), dy.cols(), x.cols());
    kernels::linear_backward_weight<T>(space, rows_of(dy, rows), rows_of(x, rows), dw, next_write(params));
    if (biases.empty()) return;
    const kernels::Vector<A> db(biases.front()->grad.data(), dy.cols());
    kernels::bias_backward<T>(space, rows_of(dy, rows), db, next_write(biases));
  };
  for_each_expert(kept.begin, [&](const Expert& expert, Range rows) {
    product(expert.down, expert.down_bias, kept.dy, kept.hidden, rows);
    product(expert.up, expert.up_bias, kept.dup, kept.x, rows);
  });
  count_products(kept.begin, width_, hidden_);
  count_products(kept.begin, up_rows_, width_);
  if (context_.options.snap) {
    const int bits = context_.options.snap->values + context_.options.snap->gradients;
    const int replicas = context_.extent(Axis::replica);
    check_exact_sum<T>(kept.dy.vector(), kept.hidden.vector(), kept.dy.rows(), bits, replicas);
    check_exact_sum<T>(kept.dup.vector(), kept.x.vector(), kept.dup.rows(), bits, replicas);
  }
  kept = Kept{};
}

template class Experts<float>;
template class Experts<double>;
template class Experts<kernels::bf16>;

}  // namespace fourfold
