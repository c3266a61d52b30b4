#include "layers/moe/router.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.hpp"
#include "base/random.hpp"
#include "kernels/gemm.hpp"
#include "kernels/vector.hpp"
#include "layers/exact.hpp"
#include "layers/moe/capacity.hpp"
#include "layers/moe/lists.hpp"
#include "tensor/number.hpp"

namespace fourfold {

namespace {

const AxisSet kAllDense{Axis::data, Axis::depth, Axis::row, Axis::col};

kernels::Scores kind_of(RouterScore score) {
  return score == RouterScore::softmax ? kernels::Scores::softmax : kernels::Scores::sigmoid;
}

template <class T>
Index step_sequences(const PlannedPass<T>& pass) {
  return pass.step_sequences > 0 ? pass.step_sequences : std::max(pass.batch->all_sequences, pass.batch->sequences);
}

}  // namespace

template <class T>
Router<T>::Router(const LayerContext<T>& context, const std::string& name, const MoeOptions& options,
                  const InitializerFor& init)
    : context_(context), name_(name), options_(options), counts_(fresh_counts()) {
  ParamSpec spec;
  spec.name = name + ".weight";
  spec.shard = whole_shard({options.experts, options.width});
  spec.sum_over = kAllDense;
  spec.init = init(spec.name, options.width, false);
  gate_ = context.store.declare(std::move(spec));
  if (options.balance.bias_rate > 0) selection_bias_.resize(static_cast<std::size_t>(options.experts));
}

template <class T>
void Router<T>::set_selection_bias(std::vector<double> bias) {
  FOURFOLD_ASSERT(bias.size() == selection_bias_.size(), "a bias of each expert");
  selection_bias_ = std::move(bias);
}

template <class T>
MoeCounts Router<T>::fresh_counts() const {
  MoeCounts counts;
  counts.pairs.resize(static_cast<std::size_t>(options_.experts));
  counts.probabilities.resize(static_cast<std::size_t>(options_.experts));
  return counts;
}

template <class T>
kernels::Matrix<const T> Router<T>::gate() const {
  return kernels::Matrix<const T>(gate_->use().data(), options_.experts, options_.width);
}

template <class T>
Tensor<T> Router<T>::jittered(const PlannedPass<T>& pass, const DoorPlan& door, const Tensor<T>& x) const {
  if (options_.jitter == 0 || !pass.training) return x;
  Tensor<T> y(context_.pool, MemoryTag::activations, x.rows(), x.cols());
  kernels::router_jitter<T>(Space(), random_stream(context_.options.seed, "jitter/" + name_, pass.step),
                            options_.jitter, door.ids.vector(), x.matrix(), y.matrix());
  return y;
}

template <class T>
typename Router<T>::Routing Router<T>::route(const PlannedPass<T>& pass, const DoorPlan& door, const Tensor<T>& x,
                                             bool keeps) {
  const Space space;
  Pool& pool = context_.pool;
  const Index tokens = door.tokens();
  const Index experts = options_.experts;
  const std::optional<Snap>& snap = context_.options.snap;
  Routing routing;
  routing.x = jittered(pass, door, x);
  routing.logits = Tensor<A>(pool, MemoryTag::activations, tokens, experts);
  routing.lse = Tensor<A>(pool, MemoryTag::activations, tokens, 1);
  if (snap) check_exact_sum<T>(routing.x.vector(), gate_->use(), options_.width, 2 * snap->values, 1);
  kernels::linear_forward<T, A>(space, routing.x.matrix(), gate(), routing.logits.matrix());
  context_.work(2 * tokens * experts * options_.width, tokens * (experts + options_.width) + gate().size());
  const Tensor<A> scores(pool, MemoryTag::buffers, tokens, experts);
  const Tensor<A> total(pool, MemoryTag::buffers, tokens, 1);
  kernels::router_scores<A>(space, kind_of(options_.score), routing.logits.matrix(), scores.matrix(),
                            routing.lse.vector(), total.vector());

  // Decided once a step and micro-batch.
  if (pass.training && pass.step != step_) {
    decisions_.clear();
    step_ = pass.step;
  }
  const std::pair key(pass.batch->first_sample, pass.batch->sequences);
  const auto decided = pass.training ? decisions_.find(key) : decisions_.end();
  if (decided != decisions_.end()) {
    routing.choice = decided->second.choice;
    routing.aux = decided->second.aux;
    if (keeps) decisions_.erase(decided);
  } else {
    routing.choice = choose(pass, door, routing.logits, scores);
    routing.fresh = pass.training;
    if (pass.training) {
      routing.aux = count(pass, door, scores, total, routing.lse, routing.choice);
      if (!keeps) decisions_.emplace(key, Decision{routing.choice, routing.aux});
    }
  }
  routing.weights = Tensor<A>(pool, MemoryTag::activations, tokens, options_.top_k);
  kernels::router_weights_forward<A>(space, options_.renormalize, scores.matrix(), routing.choice.matrix(),
                                     routing.weights.matrix());
  return routing;
}

template <class T>
Tensor<std::int32_t> Router<T>::choose(const PlannedPass<T>& pass, const DoorPlan& door, const Tensor<A>& logits,
                                       const Tensor<A>& scores) const {
  const Space space;
  Pool& pool = context_.pool;
  Tensor<std::int32_t> choice(pool, MemoryTag::activations, door.tokens(), options_.top_k);
  const auto forced = options_.forced.kind;
  if (forced == ForcedRouting::uniform) {
    kernels::router_uniform(space, door.ids.vector(), options_.experts, choice.matrix());
  } else if (forced == ForcedRouting::zipf) {
    const Tensor<A> keys(pool, MemoryTag::buffers, door.tokens(), options_.experts);
    kernels::router_zipf_keys<A>(space, random_stream(context_.options.seed, "zipf/" + name_, pass.step),
                                 options_.forced.exponent, door.ids.vector(), keys.matrix());
    kernels::router_top_k<A>(space, {}, keys.matrix(), {}, choice.matrix());
  } else {
    const kernels::TopK rule{kind_of(options_.score), options_.groups, options_.top_groups};
    // Logits have the scores' order, and tell more of them apart; sums of scores need the scores.
    const bool sums = options_.score == RouterScore::sigmoid && options_.top_groups < options_.groups;
    const std::vector<A> list(selection_bias_.begin(), selection_bias_.end());
    const Tensor<A> bias = on_device(pool, list);
    const bool by_logits = list.empty() && !sums;
    kernels::router_top_k<A>(space, rule, by_logits ? logits.matrix() : scores.matrix(), bias.vector(),
                             choice.matrix());
  }
  if (options_.capacity.factor > 0) drop_beyond_capacity(context_, options_, pass, door.ids, scores, choice);
  return choice;
}

// Adds to the counts. Returns the gradient of the balancing loss by a token's probabilities, for each scope of this
// rank; empty without such a loss, and where its scope is the step.
template <class T>
Tensor<double> Router<T>::count(const PlannedPass<T>& pass, const DoorPlan& door, const Tensor<A>& scores,
                                const Tensor<A>& total, const Tensor<A>& lse, const Tensor<std::int32_t>& choice) {
  const Space space;
  Pool& pool = context_.pool;
  const auto experts = static_cast<std::size_t>(options_.experts);
  const MoeOptions::Balance& balance = options_.balance;
  const std::vector<Index> begin =
      balance.scope == BalanceScope::sequence ? door.sequence_at : std::vector<Index>{0, door.tokens()};
  const std::size_t scopes = begin.size() - 1;
  const Tensor<double> sums(pool, MemoryTag::buffers, static_cast<Index>(scopes), 2 * options_.experts);
  kernels::router_sums<A>(space, scores.matrix(), total.vector(), choice.matrix(), on_device(pool, begin).vector(),
                          sums.matrix());
  const Tensor<double> entropy(pool, MemoryTag::buffers, door.tokens(), 1);
  const Tensor<double> squares(pool, MemoryTag::buffers, door.tokens(), 1);
  kernels::router_statistics<A>(space, scores.matrix(), total.vector(), lse.vector(), entropy.vector(),
                                squares.vector());
  const std::vector<double> here = on_host<double>(sums.vector());
  std::vector<double> shares;  // scope by scope: pairs, sums of probabilities, tokens
  for (std::size_t s = 0; s < scopes; ++s) {
    const auto first = here.begin() + static_cast<std::ptrdiff_t>(2 * experts * s);
    shares.insert(shares.end(), first, first + static_cast<std::ptrdiff_t>(2 * experts));
    shares.push_back(static_cast<double>(begin[s + 1] - begin[s]));
    for (std::size_t e = 0; e < experts; ++e) {
      counts_.pairs[e] += first[static_cast<std::ptrdiff_t>(e)];
      counts_.probabilities[e] += first[static_cast<std::ptrdiff_t>(experts + e)];
    }
  }
  counts_.tokens += static_cast<double>(door.tokens());
  counts_.entropy += kernels::sum<double>(space, entropy.vector());
  counts_.z += kernels::sum<double>(space, squares.vector()) * token_share(pass);
  if (options_.capacity.factor > 0) {
    const std::vector<std::int32_t> chosen = on_host<std::int32_t>(choice.vector());
    counts_.dropped += static_cast<double>(std::count_if(chosen.begin(), chosen.end(), [](auto c) { return c < 0; }));
  }
  if (balance.aux == 0) return {};
  if (balance.scope == BalanceScope::global_batch) {
    if (pass.step != summed_step_) step_sums_.assign(shares.size(), 0);
    summed_step_ = pass.step;
    for (std::size_t i = 0; i < shares.size(); ++i) step_sums_[i] += shares[i];
    return {};
  }
  const bool sequence = balance.scope == BalanceScope::sequence;
  AxisSet axes = sequence ? AxisSet{Axis::row, Axis::col} : kAllDense;
  if (sequence && pass.rows.depth_parts) axes = axes | AxisSet{Axis::depth};
  const double weight =
      sequence ? 1.0 / static_cast<double>(step_sequences(pass)) : 1.0 / static_cast<double>(pass.micro_batches);
  return balance_gradient(std::move(shares), context_.comms.group(axes), weight);
}

// 1 / (tokens of the step).
template <class T>
double Router<T>::token_share(const PlannedPass<T>& pass) const {
  return 1.0 / static_cast<double>(step_sequences(pass) * pass.rows.sequence_tokens);
}

// shares: scope by scope, this rank's pairs and probabilities of each expert, and tokens.
template <class T>
Tensor<double> Router<T>::balance_gradient(std::vector<double> shares, const Communicator& group, double weight) {
  const auto experts = static_cast<std::size_t>(options_.experts);
  const std::size_t width = 2 * experts + 1;
  all_reduce_sum<double>(group, shares, context_.options.summation, Phase::forward);
  std::vector<double> gradient(shares.size() / width * experts);
  for (std::size_t s = 0; s < shares.size() / width; ++s) {
    const double* sums = shares.data() + s * width;
    const double tokens = sums[2 * experts];
    if (tokens == 0) continue;
    const double factor =
        static_cast<double>(options_.experts) * weight / (static_cast<double>(options_.top_k) * tokens * tokens);
    for (std::size_t e = 0; e < experts; ++e) {
      if (group.rank() == 0) counts_.aux += factor * sums[e] * sums[experts + e];
      gradient[s * experts + e] = options_.balance.aux * factor * sums[e];
    }
  }
  const Tensor<double> list = on_device(context_.pool, gradient);
  Tensor<double> aux(context_.pool, MemoryTag::activations, static_cast<Index>(shares.size() / width),
                     options_.experts);
  kernels::copy<double>(Space(), list.vector(), aux.vector());
  return aux;
}

template <class T>
Tensor<typename Router<T>::A> Router<T>::backward_input(const PlannedPass<T>& pass, const DoorPlan& door,
                                                        const Tensor<A>& dweights, Routing& routing) {
  const Space space;
  Pool& pool = context_.pool;
  const MoeOptions::Balance& balance = options_.balance;
  Tensor<double> aux = routing.aux;
  if (balance.aux != 0 && balance.scope == BalanceScope::global_batch) {
    if (pass.step != reduced_step_) step_aux_ = balance_gradient(step_sums_, context_.comms.group(kAllDense), 1.0);
    reduced_step_ = pass.step;
    aux = step_aux_;
  }
  kernels::RouterLosses losses;
  losses.aux = aux.matrix();
  losses.ids = door.ids.vector();
  losses.sequence_tokens = pass.rows.sequence_tokens;
  losses.first_sequence = pass.batch->first_sample;
  losses.z = balance.z * token_share(pass);
  routing.dlogits = Tensor<T>(pool, MemoryTag::activations, door.tokens(), options_.experts);
  kernels::router_backward<T>(space, kind_of(options_.score), options_.renormalize, routing.logits.matrix(),
                              routing.lse.vector(), routing.choice.matrix(), dweights.matrix(), losses,
                              routing.dlogits.matrix());
  const std::optional<Snap>& snap = context_.options.snap;
  if (snap) {
    kernels::snap<T>(space, snap->gradients, routing.dlogits.vector());
    check_exact_sum<T>(routing.dlogits.vector(), gate_->use(), options_.experts, snap->values + snap->gradients, 1);
  }
  Tensor<A> dx(pool, MemoryTag::activations, door.tokens(), options_.width);
  kernels::linear_backward_input<T, A>(space, routing.dlogits.matrix(), gate(), dx.matrix());
  context_.work(2 * door.tokens() * gate().size(), door.tokens() * (options_.experts + options_.width) + gate().size());
  if (options_.jitter > 0) {
    kernels::router_jitter<A>(space, random_stream(context_.options.seed, "jitter/" + name_, pass.step),
                              options_.jitter, door.ids.vector(), dx.matrix(), dx.matrix());
  }
  return dx;
}

template <class T>
void Router<T>::backward_weight(Routing& routing) const {
  const kernels::Matrix<A> grad(gate_->grad.data(), options_.experts, options_.width);
  kernels::linear_backward_weight<T>(Space(), routing.dlogits.matrix(), routing.x.matrix(), grad, gate_->next_write());
  context_.work(2 * routing.x.rows() * gate().size(),
                routing.x.rows() * (options_.experts + options_.width) + gate().size());
  if (context_.options.snap) {
    check_exact_sum<T>(routing.dlogits.vector(), routing.x.vector(), routing.x.rows(),
                       context_.options.snap->values + context_.options.snap->gradients,
                       context_.comms.group(kAllDense).size());
  }
}

template class Router<float>;
template class Router<double>;
template class Router<kernels::bf16>;

}  // namespace fourfold
