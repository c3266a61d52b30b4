#include "layers/attention.hpp"

#include <cmath>

#include "base/error.hpp"
#include "kernels/vector.hpp"
#include "tensor/number.hpp"

namespace fourfold {

namespace {

template <class T>
Segment head_segment(const LayerContext<T>& context, const std::string& name, Index heads, Range held, Index head_dim,
                     Initializer init) {
  Segment segment;
  segment.name = name;
  segment.features = heads * head_dim;
  segment.held = {held.begin * head_dim, held.end * head_dim};
  segment.sharers = kv_head_sharers(heads, context.extent(Axis::row));
  segment.init = std::move(init);
  return segment;
}

template <class T>
kernels::Heads<const T> read_only(const kernels::Heads<T>& heads) {
  return {heads.data, heads.stride, heads.heads};
}

// The same heads, `rows` rows further down.
template <class T>
kernels::Heads<T> down(const kernels::Heads<T>& heads, Index rows) {
  return {heads.data + rows * heads.stride, heads.stride, heads.heads};
}

template <class T>
kernels::Heads<T> all_heads(const Tensor<T>& x, Index heads) {
  return {x.data(), x.cols(), heads};
}

}  // namespace

template <class T>
Attention<T>::Attention(const LayerContext<T>& context, const std::string& name, const AttentionOptions& options,
                        const InitializerFor& init)
    : context_(context),
      options_(options),
      heads_held_(context.part_of(options.heads, Axis::row)),
      kv_held_(kv_heads_held(options.kv_heads, context.extent(Axis::row), context.place(Axis::row))),
      q_(context,
         {head_segment(context, name + ".q.weight", options.heads, heads_held_, options.head_dim,
                       init(name + ".q.weight", options.width, false))},
         options.width, {Orientation{}, options.qkv_bias, true}),
      kv_(context,
          {head_segment(context, name + ".k.weight", options.kv_heads, kv_held_, options.head_dim,
                        init(name + ".k.weight", options.width, false)),
           head_segment(context, name + ".v.weight", options.kv_heads, kv_held_, options.head_dim,
                        init(name + ".v.weight", options.width, false))},
          options.width, {Orientation{}, options.qkv_bias, true}),
      output_(context,
              {even_segment(context, name + ".output.weight", options.width, Axis::col,
                            init(name + ".output.weight", options.heads * options.head_dim, true))},
              options.heads * options.head_dim, {Orientation{}.swapped(), options.output_bias, true}) {}

template <class T>
TokenLayout Attention<T>::q_layout(const Rows& rows, int col) const {
  const ColPlace place = place_over_col(kv_held_.size(), context_.extent(Axis::col), col);
  const Range heads = part(heads_held_.size(), place.head_parts, place.head_part);
  const Range sequences = part(rows.sequences, place.sequence_parts, place.sequence_part);
  TokenLayout layout;
  layout.width = heads.size() * options_.head_dim;
  for (const Range& range : rows.ranges) {
    layout.blocks.push_back({sequences, range, {heads.begin * options_.head_dim, heads.end * options_.head_dim}});
  }
  return layout;
}

template <class T>
TokenLayout Attention<T>::kv_layout(const Rows& rows, bool over_col, int col) const {
  const Index width = kv_held_.size() * options_.head_dim;
  if (!over_col) return rows.layout({0, 2 * width});
  const ColPlace place = place_over_col(kv_held_.size(), context_.extent(Axis::col), col);
  const Range heads = part(kv_held_.size(), place.head_parts, place.head_part);
  const Range sequences = part(rows.sequences, place.sequence_parts, place.sequence_part);
  TokenLayout layout;
  layout.width = heads.size() * options_.head_dim;
  for (const Index first : {Index{0}, width}) {  // keys, then values
    for (const Range& range : rows.ranges) {
      const Index begin = first + heads.begin * options_.head_dim;
      layout.blocks.push_back({sequences, range, {begin, begin + layout.width}});
    }
  }
  return layout;
}

template <class T>
typename Attention<T>::Work Attention<T>::plan_work(const RowPlan<T>& plan) const {
  const Rows& rows = plan.coordinate;
  Work work;
  work.rows = rows;
  work.sequences = {0, rows.sequences};
  work.q_heads = {0, heads_held_.size()};
  work.kv_heads = {0, kv_held_.size()};
  const int cols = context_.extent(Axis::col);
  const int col = context_.place(Axis::col);
  work.heads_over_col = context_.options.attention_over_col && cols > 1 && !plan.cached;
  if (work.heads_over_col) {
    const ColPlace place = place_over_col(kv_held_.size(), cols, col);
    work.q_heads = part(heads_held_.size(), place.head_parts, place.head_part);
    work.kv_heads = part(kv_held_.size(), place.head_parts, place.head_part);
    work.sequences = part(rows.sequences, place.sequence_parts, place.sequence_part);
    work.rows.sequences = work.sequences.size();
    std::vector<TokenLayout> q_parts, kv_parts;
    for (int c = 0; c < cols; ++c) {
      q_parts.push_back(q_layout(rows, c));
      kv_parts.push_back(kv_layout(rows, true, c));
    }
    const Communicator& group = context_.comms.group(AxisSet{Axis::col});
    const Summation summation = context_.options.summation;
    const Index kv_width = 2 * kv_held_.size() * options_.head_dim;
    work.q_over_col = std::make_unique<LayoutGather<T>>(
        group, context_.pool, std::move(q_parts), rows.layout({0, heads_held_.size() * options_.head_dim}), summation);
    work.kv_over_col = std::make_unique<LayoutGather<T>>(group, context_.pool, std::move(kv_parts),
                                                         rows.layout({0, kv_width}), summation);
  }
  for (const Range& range : rows.ranges) work.key_rows += range.size();
  if (plan.depth_parts && context_.extent(Axis::depth) > 1) {
    work.key_rows = plan.sequence_tokens;
    std::vector<TokenLayout> parts;
    for (int z = 0; z < context_.extent(Axis::depth); ++z) {
      Rows theirs = rows;
      theirs.ranges = depth_token_ranges(plan.sequence_tokens, context_.extent(Axis::depth), z);
      parts.push_back(kv_layout(theirs, work.heads_over_col, col));
    }
    Rows whole = rows;
    whole.ranges = {{0, plan.sequence_tokens}};
    work.kv_over_depth =
        std::make_unique<LayoutGather<T>>(context_.comms.group(AxisSet{Axis::depth}), context_.pool, std::move(parts),
                                          kv_layout(whole, work.heads_over_col, col), context_.options.summation);
  }
  return work;
}

template <class T>
typename Attention<T>::KeysValues Attention<T>::split_keys_values(const Work& work, const Tensor<T>& kv) const {
  const Index heads = work.kv_heads.size();
  const Index to_values = work.heads_over_col ? kv.rows() / 2 * kv.cols() : heads * options_.head_dim;
  return {{kv.data(), kv.cols(), heads}, {kv.data() + to_values, kv.cols(), heads}};
}

template <class T>
typename Attention<T>::KeysValues Attention<T>::extended(const AttentionCache<T>& cache, const Tensor<T>& kv,
                                                         Index first, Range range) const {
  FOURFOLD_ASSERT(range.end <= cache.keys.rows(), "a sequence fits in its cache");
  const Index heads = kv_held_.size(), width = heads * options_.head_dim;
  const kernels::Matrix<const T> rows = row_block(kv, first, range.size());
  kernels::copy_columns<T>(Space(), rows, 0, width, row_block(cache.keys, range.begin, range.size()), 0);
  kernels::copy_columns<T>(Space(), rows, width, width, row_block(cache.values, range.begin, range.size()), 0);
  return {all_heads(cache.keys, heads), all_heads(cache.values, heads)};
}

namespace {

// Of one number a row of the coordinate those of the rows of a range, which are `first` and on of the work's; null
// where there are none.
template <class T>
const std::int32_t* of_range(const RowPlan<T>& plan, const Tensor<std::int32_t>& numbers, const Rows& rows,
                             const Range& sequences, Index first, const Range& range) {
  if (numbers.rows() == 0 || rows.sequences == 0) return nullptr;
  return numbers.data() + plan.coordinate.sequences * (first / rows.sequences) + sequences.begin * range.size();
}

}  // namespace

template <class T>
void Attention<T>::rotate(const RowPlan<T>& rows, const Work& work, const Tensor<T>& q, const Tensor<T>& kv,
                          bool backward) const {
  if (!options_.rotary) return;
  const auto turn = backward ? kernels::rotary_backward<T> : kernels::rotary_forward<T>;
  for_each_range(work.rows, [&](Index first, Index count, Range range) {
    const kernels::RowPositions at{range.size(), range.begin,
                                   of_range(rows, rows.positions, work.rows, work.sequences, first, range)};
    turn(Space(), work.q_heads.size(), options_.head_dim, 0, at, options_.angles, row_block(q, first, count));
    turn(Space(), work.kv_heads.size(), options_.head_dim, 0, at, options_.angles, row_block(kv, first, count));
  });
}

template <class T>
kernels::AttentionShape Attention<T>::shape(const RowPlan<T>& rows, const Work& work, Index first,
                                            Range queries) const {
  kernels::AttentionShape s;
  s.batch = work.rows.sequences;
  s.query_tokens = queries.size();
  s.key_tokens = queries.end;
  s.key_rows = work.key_rows;
  s.first_query = queries.begin;
  s.first_key = of_range(rows, rows.first_keys, work.rows, work.sequences, first, queries);
  s.head_dim = options_.head_dim;
  s.scale = 1.0 / std::sqrt(static_cast<double>(options_.head_dim));
  s.heads_per_kv = options_.heads / options_.kv_heads;
  s.first_head = heads_held_.begin + work.q_heads.begin;
  s.first_kv = kv_held_.begin + work.kv_heads.begin;
  return s;
}

template <class T>
void Attention<T>::count_products(const Work& work, std::int64_t products, std::int64_t passes) const {
  Index queries = 0;
  Index pairs = 0;
  for (const Range& range : work.rows.ranges) {
    queries += range.size();
    pairs += range.size() * (range.begin + range.end + 1) / 2;
  }
  const Index width = work.rows.sequences * options_.head_dim;
  context_.work(products * 2 * pairs * work.q_heads.size() * width,
                passes * (queries * work.q_heads.size() + 2 * work.key_rows * work.kv_heads.size()) * width);
}

template <class T>
Tensor<T> Attention<T>::forward(const RowPlan<T>& rows, const Tensor<T>& stream, const Pasts& pasts, Kept* kept) const {
  const Space space;
  const auto over_row = rows.over_row(context_, stream.cols());
  Work work = plan_work(rows);
  const Tensor<T> x = over_row ? over_row->gather(stream, Phase::forward) : stream;
  const Tensor<T> q = q_.forward(x, kept != nullptr ? &kept->q_linear : nullptr, {nullptr, work.q_over_col.get()});
  Tensor<T> kv = kv_.forward(x, kept != nullptr ? &kept->kv_linear : nullptr, {nullptr, work.kv_over_col.get()});
  rotate(rows, work, q, kv, false);
  if (work.kv_over_depth) kv = work.kv_over_depth->gather(kv, Phase::forward);
  KeysValues all = split_keys_values(work, kv);
  std::size_t past = 0;
  const Index heads = work.q_heads.size();
  Tensor<T> out(context_.pool, MemoryTag::activations, q.rows(), q.cols());
  const Tensor<kernels::Acc<T>> lse(context_.pool, MemoryTag::activations, q.rows(), heads);
  for_each_range(work.rows, [&](Index first, Index count, Range range) {
    kernels::AttentionShape s = shape(rows, work, first, range);
    if (rows.cached) {
      const AttentionCache<T>& cache = *pasts[past++];
      all = extended(cache, kv, first, range);
      s.key_rows = cache.keys.rows();
    }
    const Tensor<kernels::Acc<T>> scratch(context_.pool, MemoryTag::buffers, 1, kernels::attention_scratch<T>(s));
    kernels::attention_forward<T>(space, s, read_only(down(all_heads(q, heads), first)), read_only(all.keys),
                                  read_only(all.values), down(all_heads(out, heads), first),
                                  kernels::Vector<kernels::Acc<T>>(lse.data() + first * heads, count * heads),
                                  scratch.vector());
  });
  count_products(work, 2, 1);  // scores, values
  if (kept != nullptr) {
    kept->q = q;
    kept->kv = kv;
    kept->out = out;
    kept->lse = lse;
  }
  return output_.forward(out, kept != nullptr ? &kept->output_linear : nullptr,
                         {work.q_over_col.get(), over_row.get()});
}

template <class T>
Tensor<T> Attention<T>::backward_input(const RowPlan<T>& rows, const Tensor<T>& dy, Kept& kept) const {
  using A = kernels::Acc<T>;
  const Space space;
  const auto over_row = rows.over_row(context_, dy.cols());
  const Work work = plan_work(rows);
  const Index heads = work.q_heads.size();
  const Tensor<T> dout = output_.backward_input(dy, kept.output_linear, {work.q_over_col.get(), over_row.get()});
  Tensor<T> dq(context_.pool, MemoryTag::activations, kept.q.rows(), kept.q.cols());
  Tensor<T> dkv(context_.pool, MemoryTag::activations, kept.kv.rows(), kept.kv.cols());
  const KeysValues all = split_keys_values(work, kept.kv);
  // Where several ranges of queries read the same keys their gradients (bf16: each range's, rounded) add up; keys
  // beyond a range's end get none.
  const bool several = work.rows.ranges.size() > 1 || work.kv_over_depth != nullptr;
  Tensor<A> sum;
  if (several) {
    sum = Tensor<A>(context_.pool, MemoryTag::activations, dkv.rows(), dkv.cols());
    kernels::fill<A>(space, 0, sum.vector());
  }
  for_each_range(work.rows, [&](Index first, Index count, Range range) {
    const kernels::AttentionShape s = shape(rows, work, first, range);
    const Tensor<A> scratch(context_.pool, MemoryTag::buffers, 1, kernels::attention_scratch<T>(s));
    if (several) kernels::fill<T>(space, T{0}, dkv.vector());
    const KeysValues gradients = split_keys_values(work, dkv);
    kernels::attention_backward<T>(space, s, read_only(down(all_heads(kept.q, heads), first)), read_only(all.keys),
                                   read_only(all.values), read_only(down(all_heads(kept.out, heads), first)),
                                   kernels::Vector<const A>(kept.lse.data() + first * heads, count * heads),
                                   read_only(down(all_heads(dout, heads), first)), down(all_heads(dq, heads), first),
                                   gradients.keys, gradients.values, scratch.vector());
    if (several) kernels::add<T, A>(space, dkv.vector(), sum.vector());
  });
  count_products(work, 5, 2);  // scores again, and the gradients of values, weights, queries and keys
  kept.q = kept.kv = kept.out = Tensor<T>();
  if (work.kv_over_depth) sum = work.kv_over_depth->scatter_sum(sum, Phase::backward);
  if (several) dkv = rounded<T>(context_.pool, sum);
  rotate(rows, work, dq, dkv, true);
  // The reverse of forward's order, in which weights are gathered ahead.
  Tensor<A> dx;
  kv_.partial_input_gradient(dkv, kept.kv_linear, work.kv_over_col.get(), dx);
  q_.partial_input_gradient(dq, kept.q_linear, work.q_over_col.get(), dx);
  return q_.finish_input_gradient(dx, over_row.get(), [&] {
    q_.backward_weight(kept.q_linear);
    kv_.backward_weight(kept.kv_linear);
  });
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
  cache.keys = Tensor<T>(context_.pool, MemoryTag::activations, capacity, kv_held_.size() * options_.head_dim);
  cache.values = Tensor<T>(context_.pool, MemoryTag::activations, capacity, kv_held_.size() * options_.head_dim);
  return cache;
}

template class Attention<float>;
template class Attention<double>;
template class Attention<kernels::bf16>;

}  // namespace fourfold
