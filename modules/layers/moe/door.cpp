#include "layers/moe/door.hpp"

#include <algorithm>

#include "kernels/expert_rows.hpp"
#include "kernels/vector.hpp"
#include "layers/moe/lists.hpp"
#include "tensor/number.hpp"

namespace fourfold {

template <class T>
typename Door<T>::Plan Door<T>::plan(const PlannedPass<T>& pass) const {
  const RowPlan<T>& where = pass.rows;
  const Rows& rows = where.stream;
  const int cols = context_.extent(Axis::col);
  const int parts = where.sharded ? cols : cols * context_.extent(Axis::row);
  Plan plan;
  plan.run = context_.place(Axis::col) + (where.sharded ? 0 : cols * context_.place(Axis::row));
  plan.gathered = !where.sharded;
  const Index count = rows.count();
  for (int i = 0; i <= parts; ++i) plan.runs.push_back(i < parts ? part(count, parts, i).begin : count);

  struct Held {
    Range tokens;
    Index row;  // its first
  };
  std::vector<Held> held;
  Index next = 0, further = 0;  // sequences of their own are numbered on, as if they were one
  for (const Range& range : rows.ranges) {
    if (!range.empty()) held.push_back({{further + range.begin, further + range.end}, next});
    next += rows.sequences * range.size();
    if (rows.separate) further += where.sequence_tokens;
  }
  const bool stacked = rows.sequences > 1 && held.size() > 1;  // a sequence's rows do not follow each other
  const auto in_front = [](const Held& a, const Held& b) { return a.tokens.begin < b.tokens.begin; };
  const bool in_order = !stacked && std::is_sorted(held.begin(), held.end(), in_front);
  std::sort(held.begin(), held.end(), in_front);
  std::vector<Index> begin, at{0}, row;
  for (const Held& range : held) {
    begin.push_back(range.tokens.begin);
    at.push_back(at.back() + range.tokens.size());
    row.push_back(range.row);
  }
  const Range mine{plan.runs[static_cast<std::size_t>(plan.run)], plan.runs[static_cast<std::size_t>(plan.run) + 1]};
  Pool& pool = context_.pool;
  const Tensor<Index> begins = on_device(pool, begin);
  const Tensor<Index> ats = on_device(pool, at);
  const Tensor<Index> first_rows = on_device(pool, row);
  kernels::TokenRanges ranges{begins.vector(),          ats.vector(),         first_rows.vector(), mine.begin,
                              pass.batch->first_sample, where.sequence_tokens};
  plan.ids = Tensor<std::int64_t>(pool, MemoryTag::activations, 1, mine.size());
  kernels::number_tokens(Space(), ranges, plan.ids.vector(), {});
  if (!in_order) {
    plan.row_at = Tensor<Index>(pool, MemoryTag::activations, 1, count);
    ranges.first = 0;
    kernels::number_tokens(Space(), ranges, {}, plan.row_at.vector());
  }
  for (Index s = 0; s <= rows.sequences; ++s)
    plan.sequence_at.push_back(std::clamp(s * at.back(), mine.begin, mine.end) - mine.begin);
  return plan;
}

// The rows that this rank's group over col has together, in token order.
template <class T>
Range Door<T>::section(const Plan& plan) const {
  const std::size_t cols = static_cast<std::size_t>(context_.extent(Axis::col));
  const std::size_t first = static_cast<std::size_t>(plan.run) / cols * cols;
  return {plan.runs[first], plan.runs[first + cols]};
}

template <class T>
Tensor<T> Door<T>::in(const Plan& plan, const Tensor<T>& x, Phase phase) const {
  const Space space;
  const Range rows = section(plan);
  Tensor<T> held = x;
  if (!plan.in_order()) {
    held = Tensor<T>(context_.pool, MemoryTag::activations, rows.size(), x.cols());
    const kernels::Vector<const Index> list(plan.row_at.data() + rows.begin, rows.size());
    kernels::gather_rows<T>(space, x.matrix(), list, held.matrix());
  } else if (rows.size() < x.rows()) {
    held = Tensor<T>(context_.pool, MemoryTag::activations, rows.size(), x.cols());
    const kernels::Matrix<T> block = row_block(x, rows.begin, rows.size());
    kernels::copy<T>(space, kernels::Vector<const T>(block.data(), block.size()), held.vector());
  }
  const Communicator& col = context_.comms.group({Axis::col});
  if (col.size() == 1) return held;

  std::vector<std::int64_t> sent, received;
  for (int c = 0; c < col.size(); ++c) {
    sent.push_back(run_size(plan, c) * held.cols());
    received.push_back(plan.tokens() * part(width_, col.size(), c).size());
  }
  const Tensor<T> parts(context_.pool, MemoryTag::buffers, plan.tokens(), width_);
  space.fence();
  all_to_all<Wire<T>>(col, wire(held.vector()), sent, wire(parts.vector()), received, phase);
  Tensor<T> tokens(context_.pool, MemoryTag::activations, plan.tokens(), width_);
  for (int c = 0; c < col.size(); ++c) {
    const Range cols = part(width_, col.size(), c);
    const kernels::Matrix<const T> block(parts.data() + plan.tokens() * cols.begin, plan.tokens(), cols.size());
    kernels::copy_columns<T>(space, block, 0, cols.size(), tokens.matrix(), cols.begin);
  }
  return tokens;
}

template <class T>
Tensor<T> Door<T>::out(const Plan& plan, const Tensor<T>& y, Phase phase) const {
  const Space space;
  const Communicator& col = context_.comms.group({Axis::col});
  const Index held = context_.part_of(width_, Axis::col).size();
  Tensor<T> rows = y;  // of the section
  if (col.size() > 1) {
    std::vector<std::int64_t> sent, received;
    const Tensor<T> parts(context_.pool, MemoryTag::buffers, plan.tokens(), width_);
    for (int c = 0; c < col.size(); ++c) {
      const Range cols = part(width_, col.size(), c);
      const kernels::Matrix<T> block(parts.data() + plan.tokens() * cols.begin, plan.tokens(), cols.size());
      kernels::copy_columns<T>(space, y.matrix(), cols.begin, cols.size(), block, 0);
      sent.push_back(plan.tokens() * cols.size());
      received.push_back(run_size(plan, c) * held);
    }
    rows = Tensor<T>(context_.pool, MemoryTag::activations, section(plan).size(), held);
    space.fence();
    all_to_all<Wire<T>>(col, wire(parts.vector()), sent, wire(rows.vector()), received, phase);
  }
  const Communicator& row = context_.comms.group({Axis::row});
  if (plan.gathered && row.size() > 1) {
    std::vector<std::int64_t> sizes;
    for (int r = 0; r < row.size(); ++r) {
      const std::size_t first = static_cast<std::size_t>(r) * static_cast<std::size_t>(col.size());
      sizes.push_back((plan.runs[first + static_cast<std::size_t>(col.size())] - plan.runs[first]) * held);
    }
    const Tensor<T> all(context_.pool, MemoryTag::activations, plan.runs.back(), held);
    space.fence();
    all_gather<Wire<T>>(row, wire(rows.vector()), wire(all.vector()), sizes, phase);
    rows = all;
  }
  if (plan.in_order()) return rows;
  Tensor<T> stream(context_.pool, MemoryTag::activations, rows.rows(), held);
  kernels::scatter_rows<T>(space, rows.matrix(), plan.row_at.vector(), stream.matrix());
  return stream;
}

// Rows of the run of col rank c beside this one.
template <class T>
Index Door<T>::run_size(const Plan& plan, int c) const {
  const int run = plan.run - context_.place(Axis::col) + c;
  const auto at = static_cast<std::size_t>(run);
  return plan.runs[at + 1] - plan.runs[at];
}

template class Door<float>;
template class Door<double>;
template class Door<kernels::bf16>;

}  // namespace fourfold
