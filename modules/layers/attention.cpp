#include "layers/attention.hpp"

#include <cmath>

#include "base/error.hpp"
#include "kernels/rotary.hpp"
#include "kernels/vector.hpp"

namespace fourfold {

namespace {

// The KV heads that this rank's query heads read.
template <class T>
Range kv_heads_of(const LayerContext<T>& context, Index kv_heads) {
  const int rows = context.extent(Axis::row);
  if (rows <= kv_heads) return context.part_of(kv_heads, Axis::row);
  const Index head = context.place(Axis::row) / (rows / kv_heads);
  return {head, head + 1};
}

template <class T>
Segment head_segment(const LayerContext<T>& context, const std::string& name, Index heads, Range held, Index head_dim,
                     Initializer init) {
  Segment segment;
  segment.name = name;
  segment.features = heads * head_dim;
  segment.held = {held.begin * head_dim, held.end * head_dim};
  const int sharers = context.extent(Axis::row) > heads ? context.extent(Axis::row) / static_cast<int>(heads) : 1;
  segment.owner = context.place(Axis::row) % sharers == 0;
  segment.init = std::move(init);
  return segment;
}

}  // namespace

template <class T>
Attention<T>::Attention(const LayerContext<T>& context, const std::string& name, const AttentionOptions& options,
                        const InitializerFor& init)
    : context_(context),
      options_(options),
      heads_held_(context.part_of(options.heads, Axis::row)),
      kv_held_(kv_heads_of(context, options.kv_heads)),
      q_(context,
         {head_segment(context, name + ".q.weight", options.heads, heads_held_, options.head_dim,
                       init(name + ".q.weight", options.width, false))},
         options.width, {Orientation{}, options.qkv_bias}),
      kv_(context,
          {head_segment(context, name + ".k.weight", options.kv_heads, kv_held_, options.head_dim,
                        init(name + ".k.weight", options.width, false)),
           head_segment(context, name + ".v.weight", options.kv_heads, kv_held_, options.head_dim,
                        init(name + ".v.weight", options.width, false))},
          options.width, {Orientation{}, options.qkv_bias}),
      output_(context,
              {even_segment(context, name + ".output.weight", options.width, Axis::col,
                            init(name + ".output.weight", options.heads * options.head_dim, true))},
              options.heads * options.head_dim, {Orientation{}.swapped(), options.output_bias}) {}

template <class T>
kernels::AttentionShape Attention<T>::shape(Index sequences, Index query_tokens, Index key_tokens) const {
  kernels::AttentionShape s;
  s.batch = sequences;
  s.query_tokens = query_tokens;
  s.key_tokens = key_tokens;
  s.first_query = key_tokens - query_tokens;
  s.head_dim = options_.head_dim;
  s.scale = 1.0 / std::sqrt(static_cast<double>(options_.head_dim));
  s.heads_per_kv = options_.heads / options_.kv_heads;
  s.first_head = heads_held_.begin;
  s.first_kv = kv_held_.begin;
  return s;
}

template <class T>
kernels::Heads<T> Attention<T>::heads(const Tensor<T>& tensor, Index first_col, Index count) const {
  return {tensor.data() + first_col, tensor.cols(), count};
}

namespace {

template <class T>
kernels::Heads<const T> read_only(const kernels::Heads<T>& heads) {
  return {heads.data, heads.stride, heads.heads};
}

}  // namespace

template <class T>
Tensor<T> Attention<T>::forward(const Pass<T>& pass, const Tensor<T>& x, AttentionCache<T>* cache, Kept* kept) const {
  const Space space;
  const Index tokens = pass.batch->tokens;
  const Index past = cache != nullptr ? cache->length : 0;
  Tensor<T> q = q_.forward(x, kept != nullptr ? &kept->q_linear : nullptr);
  Tensor<T> kv = kv_.forward(x, kept != nullptr ? &kept->kv_linear : nullptr);
  if (options_.rotary) {
    kernels::rotary_forward<T>(space, heads_held_.size(), options_.head_dim, 0, tokens, past, options_.rope_theta,
                               q.matrix());
    kernels::rotary_forward<T>(space, kv_held_.size(), options_.head_dim, 0, tokens, past, options_.rope_theta,
                               kv.matrix());
  }
  kernels::Heads<T> keys = heads(kv, 0, kv_held_.size());
  kernels::Heads<T> values = heads(kv, kv_cols(), kv_held_.size());
  if (cache != nullptr) {
    FOURFOLD_ASSERT(pass.batch->sequences == 1 && past + tokens <= cache->keys.rows(), "one sequence that fits");
    const auto rest = [&](const Tensor<T>& t) {
      return kernels::Matrix<T>(t.data() + past * t.cols(), tokens, t.cols());
    };
    kernels::copy_columns<T>(space, kv.matrix(), 0, kv_cols(), rest(cache->keys), 0);
    kernels::copy_columns<T>(space, kv.matrix(), kv_cols(), kv_cols(), rest(cache->values), 0);
    cache->length += tokens;
    keys = heads(cache->keys, 0, kv_held_.size());
    values = heads(cache->values, 0, kv_held_.size());
  }
  const kernels::AttentionShape s = shape(pass.batch->sequences, tokens, past + tokens);
  Tensor<T> out(context_.pool, MemoryTag::activations, q.rows(), q.cols());
  const Tensor<kernels::Acc<T>> lse(context_.pool, MemoryTag::activations, s.batch * heads_held_.size(), tokens);
  const Tensor<T> scratch(context_.pool, MemoryTag::buffers, 1, kernels::attention_scratch<T>(s));
  kernels::attention_forward<T>(space, s, read_only(heads(q, 0, heads_held_.size())), read_only(keys),
                                read_only(values), heads(out, 0, heads_held_.size()), lse.vector(), scratch.vector());
  if (kept != nullptr) {
    kept->q = q;
    kept->kv = kv;
    kept->out = out;
    kept->lse = lse;
  }
  return output_.forward(out, kept != nullptr ? &kept->output_linear : nullptr);
}

template <class T>
Tensor<T> Attention<T>::backward_input(const Pass<T>& pass, const Tensor<T>& dy, Kept& kept) const {
  const Space space;
  const Index tokens = pass.batch->tokens;
  const Index held = heads_held_.size();
  const Tensor<T> dout = output_.backward_input(dy, kept.output_linear);
  const kernels::AttentionShape s = shape(pass.batch->sequences, tokens, tokens);
  Tensor<T> dq(context_.pool, MemoryTag::activations, kept.q.rows(), kept.q.cols());
  Tensor<T> dkv(context_.pool, MemoryTag::activations, kept.kv.rows(), kept.kv.cols());
  const Tensor<T> scratch(context_.pool, MemoryTag::buffers, 1, kernels::attention_scratch<T>(s));
  kernels::attention_backward<T>(
      space, s, read_only(heads(kept.q, 0, held)), read_only(heads(kept.kv, 0, kv_held_.size())),
      read_only(heads(kept.kv, kv_cols(), kv_held_.size())), read_only(heads(kept.out, 0, held)), kept.lse.vector(),
      read_only(heads(dout, 0, held)), heads(dq, 0, held), heads(dkv, 0, kv_held_.size()),
      heads(dkv, kv_cols(), kv_held_.size()), scratch.vector());
  if (options_.rotary) {
    kernels::rotary_backward<T>(space, held, options_.head_dim, 0, tokens, 0, options_.rope_theta, dq.matrix());
    kernels::rotary_backward<T>(space, kv_held_.size(), options_.head_dim, 0, tokens, 0, options_.rope_theta,
                                dkv.matrix());
  }
  kept.q = kept.kv = kept.out = Tensor<T>();
  const Tensor<T> dx = q_.backward_input(dq, kept.q_linear);
  const Tensor<T> dx_kv = kv_.backward_input(dkv, kept.kv_linear);
  kernels::add<T>(space, dx_kv.vector(), dx.vector());
  return dx;
}

template <class T>
void Attention<T>::backward_weight(Kept& kept) const {
  output_.backward_weight(kept.output_linear);
  q_.backward_weight(kept.q_linear);
  kv_.backward_weight(kept.kv_linear);
}

template <class T>
AttentionCache<T> Attention<T>::make_cache(Index capacity) const {
  AttentionCache<T> cache;
  cache.keys = Tensor<T>(context_.pool, MemoryTag::activations, capacity, kv_cols());
  cache.values = Tensor<T>(context_.pool, MemoryTag::activations, capacity, kv_cols());
  return cache;
}

template class Attention<float>;
template class Attention<double>;

}  // namespace fourfold
