#include "layers/moe/dispatcher.hpp"

#include <numeric>

#include "base/error.hpp"
#include "kernels/expert_rows.hpp"
#include "kernels/vector.hpp"
#include "layers/moe/lists.hpp"
#include "layers/moe/node_exchange.hpp"
#include "tensor/number.hpp"

namespace fourfold {

namespace {

constexpr std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

std::vector<std::int64_t> times(const std::vector<Index>& sizes, Index factor) {
  std::vector<std::int64_t> products;
  products.reserve(sizes.size());
  for (const Index size : sizes) products.push_back(size * factor);
  return products;
}

}  // namespace

template <class T>
Index Dispatcher<T>::Plan::sum(const std::vector<Index>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), Index{0});
}

template <class T>
typename Dispatcher<T>::Plan Dispatcher<T>::plan(const Tensor<std::int32_t>& choice, const Tensor<std::int64_t>& ids,
                                                 Phase phase) const {
  const Space space;
  Pool& pool = context_.pool;
  const Index experts = places_.experts();
  const Index pairs = choice.size();
  Plan plan;
  plan.top_k = choice.cols();
  plan.position = Tensor<Index>(pool, MemoryTag::activations, choice.rows(), choice.cols());
  plan.order = Tensor<Index>(pool, MemoryTag::activations, 1, pairs);
  const Tensor<Index> scratch(pool, MemoryTag::buffers, 1, kernels::sort_pairs_scratch(pairs, experts));
  const Tensor<Index> mine(pool, MemoryTag::buffers, 1, experts);
  kernels::sort_pairs(space, choice.vector(), on_device(pool, places_.place_of()).vector(), scratch.vector(),
                      plan.position.vector(), plan.order.vector(), mine.vector());

  // Of every rank of the replica: pairs by the expert's place, and tokens.
  const Communicator& replica = context_.comms.group({Axis::expert, Axis::moe_row, Axis::moe_col});
  std::vector<std::int64_t> own = on_host<Index>(mine.vector());
  own.push_back(choice.rows());
  std::vector<std::int64_t> counts(own.size() * at(replica.size()));
  all_gather<std::int64_t>(replica, own, counts, std::vector<std::int64_t>(at(replica.size()), std::ssize(own)), phase);
  plan_order(plan, counts, ids, phase);
  return plan;
}

// counts: member by member of the replica's group, pairs by place and tokens.
template <class T>
void Dispatcher<T>::plan_order(Plan& plan, const std::vector<std::int64_t>& counts, const Tensor<std::int64_t>& ids,
                               Phase phase) const {
  const Space space;
  Pool& pool = context_.pool;
  const Communicator& replica = context_.comms.group({Axis::expert, Axis::moe_row, Axis::moe_col});
  const Index columns = places_.experts() + 1;
  const int ranks = places_.ranks();
  const int blocks = row().size() * col().size();
  const int block = row().rank() * col().size() + col().rank();
  const auto count = [&](int member, Index place) { return counts[at(member * columns + place)]; };
  const auto pairs_of = [&](int member, int rank) {
    Index sum = 0;
    for (Index place = places_.of_rank(rank).begin; place < places_.of_rank(rank).end; ++place)
      sum += count(member, place);
    return sum;
  };

  for (int r = 0; r < ranks; ++r) {
    plan.sent.push_back(pairs_of(replica.rank(), r));
    plan.arrived.push_back(pairs_of(r * blocks + block, expert().rank()));
    plan.tokens.push_back(count(r * blocks + block, places_.experts()));
  }
  for (int r = 0; r < ranks && type_ == DispatcherType::allgather; ++r) {
    plan.rows_at.push_back(0);
    for (int s = 0; s < ranks; ++s) {
      if (s == expert().rank()) plan.rows_before.push_back(plan.rows_at.back());
      plan.rows_at.back() += pairs_of(s * blocks + block, r);
    }
  }
  for (int s = 0; s < ranks && type_ == DispatcherType::hierarchical; ++s) {
    for (int r = 0; r < ranks; ++r) plan.all_sent.push_back(pairs_of(s * blocks + block, r));
  }

  // Runs as their numbers come, member by member; as their rows come, (moe_row, moe_col) block by block.
  const Range held = places_.of_rank(expert().rank());
  std::vector<Index> run_begin{0}, row_begin(at(replica.size() * held.size())), expert_rows(at(held.size()));
  Index next_row = 0;
  for (int b = 0; b < blocks; ++b) {
    const Index first = next_row;
    for (int s = 0; s < ranks; ++s) {
      const int member = s * blocks + b;
      for (Index e = 0; e < held.size(); ++e) {
        row_begin[at(member * held.size() + e)] = next_row;
        next_row += count(member, held.begin + e);
        expert_rows[at(e)] += count(member, held.begin + e);
      }
    }
    plan.block_rows.push_back(next_row - first);
  }
  plan.expert_begin = begins_of(expert_rows);

  std::vector<std::int64_t> sent, received;
  int sources = 0;  // that have pairs for this rank's experts
  for (int member = 0; member < replica.size(); ++member) {
    sent.push_back(plan.sent[at(member / blocks)]);
    received.push_back(pairs_of(member, expert().rank()));
    sources += received.back() > 0 ? 1 : 0;
    for (Index e = 0; e < held.size(); ++e) run_begin.push_back(run_begin.back() + count(member, held.begin + e));
  }
  const Tensor<std::int64_t> pair_ids(pool, MemoryTag::buffers, 1, plan.pairs() * blocks);
  const Tensor<std::int64_t> arrived(pool, MemoryTag::buffers, 1, plan.rows());
  const kernels::Vector<const Index> order(plan.order.data(), plan.pairs());
  kernels::pair_ids(space, plan.top_k, ids.vector(), order, on_device(pool, begins_of(plan.sent)).vector(), blocks,
                    pair_ids.vector());
  space.fence();
  all_to_all<std::int64_t>(replica, wire(pair_ids.vector()), sent, wire(arrived.vector()), received, phase);

  // One source's rows are in order as they come.
  if (sources > 1) {
    plan.row_of = Tensor<Index>(pool, MemoryTag::activations, 1, plan.rows());
    const Tensor<Index> begins = on_device(pool, run_begin);
    const Tensor<Index> rows = on_device(pool, row_begin);
    const Tensor<Index> firsts = on_device(pool, plan.expert_begin);
    kernels::merge_runs(space, {replica.size(), held.size(), begins.vector(), rows.vector(), firsts.vector()},
                        arrived.vector(), plan.row_of.vector());
  }
  if (type_ == DispatcherType::allgather && ranks > 1) plan_tokens(plan, ids, arrived, received, phase);
}

// arrived: numbers of pairs, `sizes` of each member of the replica's group.
template <class T>
void Dispatcher<T>::plan_tokens(Plan& plan, const Tensor<std::int64_t>& ids, const Tensor<std::int64_t>& arrived,
                                const std::vector<std::int64_t>& sizes, Phase phase) const {
  const Space space;
  Pool& pool = context_.pool;
  const int ranks = places_.ranks();
  const int blocks = row().size() * col().size();
  const int block = row().rank() * col().size() + col().rank();
  // The rows that come to this rank are those of members of its own block.
  const Tensor<std::int64_t> own(pool, MemoryTag::buffers, 1, plan.arrivals());
  const std::vector<Index> begins = begins_of(sizes);
  Index next = 0;
  for (int s = 0; s < ranks; ++s) {
    const std::size_t member = at(s * blocks + block);
    kernels::copy<std::int64_t>(space,
                                kernels::Vector<const std::int64_t>(arrived.data() + begins[member], sizes[member]),
                                kernels::Vector<std::int64_t>(own.data() + next, sizes[member]));
    next += sizes[member];
  }
  const Tensor<std::int64_t> all_ids(pool, MemoryTag::buffers, 1, Plan::sum(plan.tokens));
  space.fence();
  all_gather<std::int64_t>(expert(), wire(ids.vector()), wire(all_ids.vector()), plan.tokens, phase);
  plan.pair_of = Tensor<Index>(pool, MemoryTag::activations, 1, plan.arrivals());
  const Tensor<Index> id_begins = on_device(pool, begins_of(plan.arrived));
  const Tensor<Index> token_begins = on_device(pool, begins_of(plan.tokens));
  kernels::find_pairs(space, plan.top_k, own.vector(), id_begins.vector(), all_ids.vector(), token_begins.vector(),
                      plan.pair_of.vector());
}

// arrivals x D, source by source.
template <class T>
Tensor<T> Dispatcher<T>::to_experts(const Plan& plan, const Tensor<T>& x, const Tensor<A>& weights, Phase phase) const {
  const Space space;
  Pool& pool = context_.pool;
  const Index width = x.cols();
  Tensor<T> arrived(pool, MemoryTag::activations, plan.arrivals(), width);
  if (type_ == DispatcherType::allgather && expert().size() > 1) {
    const Tensor<T> all(pool, MemoryTag::buffers, Plan::sum(plan.tokens), width);
    const Tensor<A> all_weights(pool, MemoryTag::buffers, weights.cols() > 0 ? all.rows() : 0, plan.top_k);
    space.fence();
    all_gather<Wire<T>>(expert(), wire(x.vector()), wire(all.vector()), times(plan.tokens, width), phase);
    if (weights.cols() > 0) {
      all_gather<A>(expert(), wire(weights.vector()), wire(all_weights.vector()), times(plan.tokens, plan.top_k),
                    phase);
    }
    kernels::gather_pairs<T>(space, all.matrix(), plan.top_k, all_weights.vector(), plan.pair_of.vector(),
                             arrived.matrix());
    return arrived;
  }
  const kernels::Vector<const Index> order(plan.order.data(), plan.pairs());
  if (expert().size() == 1) {
    kernels::gather_pairs<T>(space, x.matrix(), plan.top_k, weights.vector(), order, arrived.matrix());
    return arrived;
  }
  const Tensor<T> rows(pool, MemoryTag::buffers, plan.pairs(), width);
  kernels::gather_pairs<T>(space, x.matrix(), plan.top_k, weights.vector(), order, rows.matrix());
  space.fence();
  if (type_ == DispatcherType::hierarchical) {
    node_exchange<Wire<T>>(expert(), pool, wire(rows.vector()), wire(arrived.vector()), times(plan.all_sent, width),
                           phase);
  } else {
    all_to_all<Wire<T>>(expert(), wire(rows.vector()), times(plan.sent, width), wire(arrived.vector()),
                        times(plan.arrived, width), phase);
  }
  return arrived;
}

// y: arrivals x D, source by source -> pairs x D.
template <class T>
Tensor<T> Dispatcher<T>::from_experts(const Plan& plan, const Tensor<T>& y, Phase phase) const {
  if (expert().size() == 1) return y;
  const Space space;
  Pool& pool = context_.pool;
  const Index width = y.cols();
  const Tensor<T> pairs(pool, MemoryTag::activations, plan.pairs(), width);
  space.fence();
  if (type_ == DispatcherType::alltoall) {
    all_to_all<Wire<T>>(expert(), wire(y.vector()), times(plan.arrived, width), wire(pairs.vector()),
                        times(plan.sent, width), phase);
  } else if (type_ == DispatcherType::hierarchical) {
    const int ranks = expert().size();
    std::vector<std::int64_t> back(plan.all_sent.size());
    for (int s = 0; s < ranks; ++s)
      for (int r = 0; r < ranks; ++r) back[at(s * ranks + r)] = plan.all_sent[at(r * ranks + s)] * width;
    node_exchange<Wire<T>>(expert(), pool, wire(y.vector()), wire(pairs.vector()), back, phase);
  } else {
    const Tensor<T> all(pool, MemoryTag::buffers, Plan::sum(plan.rows_at), width);
    all_gather<Wire<T>>(expert(), wire(y.vector()), wire(all.vector()), times(plan.rows_at, width), phase);
    Index begin = 0;  // of the rank's rows
    Index next = 0;
    for (int r = 0; r < expert().size(); ++r) {
      const Index mine = plan.sent[at(r)] * width;
      kernels::copy<T>(space, kernels::Vector<const T>(all.data() + (begin + plan.rows_before[at(r)]) * width, mine),
                       kernels::Vector<T>(pairs.data() + next, mine));
      begin += plan.rows_at[at(r)];
      next += mine;
    }
  }
  return pairs;
}

// arrivals x D -> the pairs of the group over moe_col x D/moe_col, rank by rank.
template <class T>
Tensor<T> Dispatcher<T>::columns_in(const Plan& plan, const Tensor<T>& x, Phase phase) const {
  if (col().size() == 1) return x;
  const Space space;
  const Range held = context_.part_of(width_, Axis::moe_col);
  const Tensor<T> parts(context_.pool, MemoryTag::buffers, x.rows(), width_);
  std::vector<std::int64_t> sent, received;
  Index rows = 0;
  for (int c = 0; c < col().size(); ++c) {
    const Range cols = part(width_, col().size(), c);
    const kernels::Matrix<T> block(parts.data() + x.rows() * cols.begin, x.rows(), cols.size());
    kernels::copy_columns<T>(space, x.matrix(), cols.begin, cols.size(), block, 0);
    const Index theirs = plan.block_rows[at(row().rank() * col().size() + c)];
    sent.push_back(block.size());
    received.push_back(theirs * held.size());
    rows += theirs;
  }
  const Tensor<T> y(context_.pool, MemoryTag::activations, rows, held.size());
  space.fence();
  all_to_all<Wire<T>>(col(), wire(parts.vector()), sent, wire(y.vector()), received, phase);
  return y;
}

template <class T>
Tensor<T> Dispatcher<T>::columns_out(const Plan& plan, const Tensor<T>& y, Phase phase) const {
  if (col().size() == 1) return y;
  const Space space;
  const Index arrivals = plan.arrivals();
  const Tensor<T> parts(context_.pool, MemoryTag::buffers, arrivals, width_);
  std::vector<std::int64_t> sent, received;
  for (int c = 0; c < col().size(); ++c) {
    sent.push_back(plan.block_rows[at(row().rank() * col().size() + c)] * y.cols());
    received.push_back(arrivals * part(width_, col().size(), c).size());
  }
  space.fence();
  all_to_all<Wire<T>>(col(), wire(y.vector()), sent, wire(parts.vector()), received, phase);
  const Tensor<T> x(context_.pool, MemoryTag::activations, arrivals, width_);
  for (int c = 0; c < col().size(); ++c) {
    const Range cols = part(width_, col().size(), c);
    const kernels::Matrix<const T> block(parts.data() + arrivals * cols.begin, arrivals, cols.size());
    kernels::copy_columns<T>(space, block, 0, cols.size(), x.matrix(), cols.begin);
  }
  return x;
}

// Rows that the groups over moe_col of each moe_row rank bring.
template <class T>
std::vector<std::int64_t> Dispatcher<T>::rows_over_moe_row(const Plan& plan) const {
  std::vector<std::int64_t> rows;
  for (int r = 0; r < row().size(); ++r) {
    rows.push_back(0);
    for (int c = 0; c < col().size(); ++c) rows.back() += plan.block_rows[at(r * col().size() + c)];
  }
  return rows;
}

template <class T>
Tensor<T> Dispatcher<T>::in(const Plan& plan, const Tensor<T>& x, const Tensor<A>& weights, Phase phase) const {
  const Space space;
  Tensor<T> rows = columns_in(plan, to_experts(plan, x, weights, phase), phase);
  if (row().size() > 1) {
    const Tensor<T> all(context_.pool, MemoryTag::activations, plan.rows(), rows.cols());
    space.fence();
    all_gather<Wire<T>>(row(), wire(rows.vector()), wire(all.vector()), times(rows_over_moe_row(plan), rows.cols()),
                        phase);
    rows = all;
  }
  if (plan.row_of.data() == nullptr) return rows;
  Tensor<T> sorted(context_.pool, MemoryTag::activations, rows.rows(), rows.cols());
  kernels::gather_rows<T>(space, rows.matrix(), plan.row_of.vector(), sorted.matrix());
  return sorted;
}

template <class T>
Tensor<T> Dispatcher<T>::out(const Plan& plan, const Tensor<A>& sorted, std::optional<int> snap_bits,
                             Phase phase) const {
  const Space space;
  Tensor<A> sum = sorted;
  if (plan.row_of.data() != nullptr) {
    sum = Tensor<A>(context_.pool, MemoryTag::activations, sorted.rows(), sorted.cols());
    kernels::scatter_rows<A>(space, sorted.matrix(), plan.row_of.vector(), sum.matrix());
  }
  if (row().size() > 1) {
    const std::vector<std::int64_t> rows = rows_over_moe_row(plan);
    const Tensor<A> mine(context_.pool, MemoryTag::activations, rows[at(row().rank())], sum.cols());
    space.fence();
    reduce_scatter_sum<A>(row(), wire(sum.vector()), wire(mine.vector()), times(rows, sum.cols()),
                          context_.options.summation, phase);
    sum = mine;
  }
  const Tensor<T> y = rounded<T>(context_.pool, sum);
  if (snap_bits) kernels::snap<T>(space, *snap_bits, y.vector());
  return from_experts(plan, columns_out(plan, y, phase), phase);
}

template <class T>
Tensor<typename Dispatcher<T>::A> Dispatcher<T>::weights_in(const Plan& plan, const Tensor<A>& weights,
                                                            Phase phase) const {
  const Space space;
  Pool& pool = context_.pool;
  const auto of_group = [&](const Communicator& group, const Tensor<A>& mine, const std::vector<std::int64_t>& sizes) {
    if (group.size() == 1) return mine;
    Tensor<A> all(pool, MemoryTag::buffers, Plan::sum(sizes), 1);
    space.fence();
    all_gather<A>(group, wire(mine.vector()), wire(all.vector()), sizes, phase);
    return all;
  };
  const Tensor<A> sent(pool, MemoryTag::buffers, plan.pairs(), 1);
  kernels::gather_rows<A>(space, kernels::Matrix<const A>(weights.data(), weights.size(), 1),
                          kernels::Vector<const Index>(plan.order.data(), plan.pairs()), sent.matrix());
  Tensor<A> rows(pool, MemoryTag::buffers, plan.arrivals(), 1);
  space.fence();
  all_to_all<A>(expert(), wire(sent.vector()), plan.sent, wire(rows.vector()), plan.arrived, phase);
  const auto first = plan.block_rows.begin() + row().rank() * col().size();
  rows = of_group(col(), rows, std::vector<std::int64_t>(first, first + col().size()));
  rows = of_group(row(), rows, rows_over_moe_row(plan));
  if (plan.row_of.data() == nullptr) return rows;
  Tensor<A> sorted(pool, MemoryTag::activations, plan.rows(), 1);
  kernels::gather_rows<A>(space, rows.matrix(), plan.row_of.vector(), sorted.matrix());
  return sorted;
}

template <class T>
Tensor<typename Dispatcher<T>::A> Dispatcher<T>::weights_out(const Plan& plan, const Tensor<A>& rows,
                                                             Phase phase) const {
  const Space space;
  Pool& pool = context_.pool;
  Tensor<A> sum = rows;
  if (plan.row_of.data() != nullptr) {
    sum = Tensor<A>(pool, MemoryTag::buffers, plan.rows(), 1);
    kernels::scatter_rows<A>(space, rows.matrix(), plan.row_of.vector(), sum.matrix());
  }
  if (row().size() > 1) {
    const std::vector<std::int64_t> sizes = rows_over_moe_row(plan);
    const Tensor<A> mine(pool, MemoryTag::buffers, sizes[at(row().rank())], 1);
    space.fence();
    reduce_scatter_sum<A>(row(), wire(sum.vector()), wire(mine.vector()), sizes, context_.options.summation, phase);
    sum = mine;
  }
  Index before = 0;  // rows of lower ranks of moe_col
  for (int c = 0; c < col().rank(); ++c) before += plan.block_rows[at(row().rank() * col().size() + c)];
  const Tensor<A> back(pool, MemoryTag::buffers, plan.pairs(), 1);
  space.fence();
  all_to_all<A>(expert(), wire<const A>(sum.data() + before, plan.arrivals()), plan.arrived, wire(back.vector()),
                plan.sent, phase);
  Tensor<A> pairs(pool, MemoryTag::activations, plan.position.rows(), plan.position.cols());
  kernels::fill<A>(space, A(0), pairs.vector());
  kernels::scatter_rows<A>(space, back.matrix(), kernels::Vector<const Index>(plan.order.data(), plan.pairs()),
                           kernels::Matrix<A>(pairs.data(), pairs.size(), 1));
  return pairs;
}

template class Dispatcher<float>;
template class Dispatcher<double>;
template class Dispatcher<kernels::bf16>;

}  // namespace fourfold
