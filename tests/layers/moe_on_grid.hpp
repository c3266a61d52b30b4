// The layer on a grid: makes it, runs a step, and compares what this rank has with the reference.
#pragma once

#include <gtest/gtest.h>

#include "comm/agree.hpp"
#include "comm/launch.hpp"
#include "comm/ledger.hpp"
#include "grid/cuts.hpp"
#include "layers/moe/moe.hpp"
#include "moe_reference.hpp"
#include "mpi_test.hpp"

namespace fourfold::test {

inline std::string text(const StageShape& shape) {
  const DenseShape& d = shape.dense;
  const MoeShape& m = shape.moe;
  std::string all = "dense";
  for (const int n : {d.data, d.depth, d.row, d.col}) all += " " + std::to_string(n);
  all += ", moe";
  for (const int n : {m.replica, m.expert, m.row, m.col}) all += " " + std::to_string(n);
  return all;
}

inline GridComms make_comms(const StageShape& shape) {
  std::vector<GroupKey> sets = dense_axis_sets();
  for (const GroupKey& key : moe_axis_sets()) sets.push_back(key);
  return GridComms(launch().world(), ProcessGrid({shape}), sets);
}

template <class T>
class MoeOnGrid {
 public:
  MoeOnGrid(const GridComms& comms, const LayerOptions& layer_options, MoeReference& reference)
      : reference_(reference),
        context_{comms, pool_, store_, layer_options, deferred_, gathers_},
        layer_(context_, "moe", reference.o, [&reference](const std::string& name, Index, bool) {
          return [&reference, name](std::int64_t first, std::span<double> values) {
            // The reference has run, or makes them by name: of any length.
            auto found = reference.params.find(name);
            const Numbers all = found != reference.params.end()
                                    ? found->second
                                    : named_values(name, first + std::ssize(values), reference.scale);
            std::copy_n(all.begin() + first, values.size(), values.begin());
          };
        }) {
    store_.allocate(pool_);
    for (Param<T>& param : store_.params()) {
      if (!param.spec.name.ends_with(".bias") || param.spec.shard.size() == 0) continue;
      const Numbers all = reference.params.at(param.spec.name);
      for (Index i = 0; i < param.spec.shard.size(); ++i)
        param.value(i) = static_cast<T>(all[static_cast<std::size_t>(param.spec.shard.global_index(i))]);
    }
    store_.restart_gradients();
    plan_batches();
  }

  // Forward of all micro-batches, then backward in ascending order. recompute: each forward runs twice.
  void run(bool recompute = false) {
    std::vector<typename MoeLayer<T>::Kept> kept(passes_.size());
    y.clear();
    dx.clear();
    for (std::size_t m = 0; m < passes_.size(); ++m) {
      if (recompute) layer_.forward(passes_[m], rows_of(m, reference_.s.x), nullptr);
      if (!recompute) y.push_back(layer_.forward(passes_[m], rows_of(m, reference_.s.x), &kept[m]));
    }
    for (std::size_t m = 0; m < passes_.size(); ++m) {
      if (recompute) y.push_back(layer_.forward(passes_[m], rows_of(m, reference_.s.x), &kept[m]));
      dx.push_back(layer_.backward_input(passes_[m], rows_of(m, reference_.s.dy), kept[m]));
      layer_.backward_weight(kept[m]);
    }
    deferred_.finish();
    for (ParamGroup<T>& group : store_.groups()) store_.finish_gradients(group);
  }

  // The largest differences to the reference, over the ranks.
  double y_gap() { return gap(y, reference_.y); }
  double dx_gap() { return gap(dx, reference_.dx); }
  double gradient_gap(const std::string& ending = "") {
    double worst = 0;
    for (Param<T>& param : store_.params()) {
      const Numbers mine = summed_gradient(param);
      if (!param.spec.name.ends_with(ending)) continue;
      const Numbers& all = reference_.gradients[param.spec.name];
      for (Index i = 0; i < param.spec.shard.size(); ++i) {
        const auto at = static_cast<std::size_t>(param.spec.shard.global_index(i));
        const double expected = at < all.size() ? all[at] : 0;  // an idle expert's
        worst = larger(worst, std::abs(mine[static_cast<std::size_t>(i)] - expected));
      }
    }
    return over_ranks(worst);
  }
  Numbers summed_gradient(const Param<T>& param) const {
    Numbers mine;
    for (Index i = 0; i < param.spec.shard.size(); ++i) mine.push_back(static_cast<double>(param.grad(i)));
    all_reduce_sum<double>(context_.comms.group(param.spec.sum_over), mine, Summation::deterministic, Phase::control);
    return mine;
  }
  // Elements of all parameters that their owners hold: the model's.
  std::int64_t owned() const {
    double sum = 0;
    for (const Param<T>& param : store_.params()) {
      bool first = param.spec.owner;
      for (const Axis axis : {Axis::data, Axis::depth, Axis::row, Axis::col, Axis::replica})
        first = first && (!param.spec.sum_over.has(axis) || context_.place(axis) == 0);
      if (first) sum += static_cast<double>(param.spec.shard.size());
    }
    all_reduce_sum<double>(launch().world(), {&sum, 1}, Summation::deterministic, Phase::control);
    return static_cast<std::int64_t>(sum);
  }
  // Every number that this rank has, to compare runs bit for bit.
  Numbers all_numbers() const {
    Numbers all;
    for (const auto* tensors : {&y, &dx}) {
      for (const Tensor<T>& x : *tensors)
        for (Index i = 0; i < x.size(); ++i) all.push_back(static_cast<double>(x.data()[i]));
    }
    for (const Param<T>& param : store_.params())
      for (Index i = 0; i < param.spec.shard.size(); ++i) all.push_back(static_cast<double>(param.grad(i)));
    return all;
  }
  MoeCounts counts() {
    MoeCounts mine = layer_.take_counts();
    Numbers flat{mine.tokens, mine.dropped, mine.received, mine.entropy, mine.aux, mine.z};
    flat.insert(flat.end(), mine.pairs.begin(), mine.pairs.end());
    flat.insert(flat.end(), mine.probabilities.begin(), mine.probabilities.end());
    all_reduce_sum<double>(launch().world(), flat, Summation::deterministic, Phase::control);
    const auto experts = static_cast<std::ptrdiff_t>(mine.pairs.size());
    MoeCounts sum{{flat.begin() + 6, flat.begin() + 6 + experts}, {flat.begin() + 6 + experts, flat.end()}};
    sum.tokens = flat[0];
    sum.dropped = flat[1];
    sum.received = flat[2];
    sum.entropy = flat[3];
    sum.aux = flat[4];
    sum.z = flat[5];
    return sum;
  }

  // sum <dy, y> over the step, each element once, and the losses with their coefficients.
  double loss() {
    double sum = 0;
    const bool once = context_.options.sequence_shard || context_.place(Axis::row) == 0;
    for (std::size_t m = 0; m < y.size() && once; ++m) {
      const Tensor<T> dy = rows_of(m, reference_.s.dy);
      for (Index i = 0; i < dy.size(); ++i)
        sum += static_cast<double>(dy.data()[i]) * static_cast<double>(y[m].data()[i]);
    }
    all_reduce_sum<double>(launch().world(), {&sum, 1}, Summation::deterministic, Phase::control);
    const MoeCounts seen = counts();
    return sum + reference_.o.balance.aux * seen.aux + reference_.o.balance.z * seen.z;
  }
  // The step's rows x D of `mine` (y or dx), and all gradients by name, on every rank.
  Numbers whole(const std::vector<Tensor<T>>& mine) const {
    Numbers all(static_cast<std::size_t>(reference_.s.rows() * reference_.o.width), 0);
    const bool once = context_.options.sequence_shard || context_.place(Axis::row) == 0;
    for (std::size_t m = 0; m < mine.size() && once; ++m) {
      visit(m, [&](Index row, Index global) {
        for (Index c = 0; c < cols().size(); ++c)
          all[static_cast<std::size_t>(global * reference_.o.width + cols().begin + c)] =
              static_cast<double>(mine[m].data()[row * cols().size() + c]);
      });
    }
    all_reduce_sum<double>(launch().world(), all, Summation::deterministic, Phase::control);
    return all;
  }
  Numbers whole_gradients() const {
    Numbers every;
    for (const Param<T>& param : store_.params()) {
      const Numbers mine = summed_gradient(param);
      Numbers all(static_cast<std::size_t>(param.spec.shard.global_size()), 0);
      bool first = param.spec.owner;
      for (const Axis axis : {Axis::data, Axis::depth, Axis::row, Axis::col, Axis::replica})
        first = first && (!param.spec.sum_over.has(axis) || context_.place(axis) == 0);
      for (Index i = 0; i < param.spec.shard.size() && first; ++i)
        all[static_cast<std::size_t>(param.spec.shard.global_index(i))] = mine[static_cast<std::size_t>(i)];
      all_reduce_sum<double>(launch().world(), all, Summation::deterministic, Phase::control);
      every.insert(every.end(), all.begin(), all.end());
    }
    return every;
  }

  MoeLayer<T>& layer() { return layer_; }
  ParamStore<T>& store() { return store_; }
  const LayerContext<T>& context() const { return context_; }
  PlannedPass<T>& pass(std::size_t m) { return passes_[m]; }
  std::size_t passes() const { return passes_.size(); }
  Pool& pool() { return pool_; }
  MemoryLedger& ledger() { return ledger_; }

  // This rank's rows of the stream and columns, of the step's rows x D.
  Tensor<T> rows_of(std::size_t m, const Numbers& all) {
    Tensor<T> x(pool_, MemoryTag::activations, passes_[m].rows.stream.count(), cols().size());
    visit(m, [&](Index row, Index global) {
      for (Index c = 0; c < cols().size(); ++c)
        x.data()[row * cols().size() + c] =
            static_cast<T>(all[static_cast<std::size_t>(global * reference_.o.width + cols().begin + c)]);
    });
    return x;
  }

  std::vector<Tensor<T>> y, dx;  // by micro-batch

 private:
  Range cols() const { return context_.part_of(reference_.o.width, Axis::col); }

  void plan_batches() {
    const Step& step = reference_.s;
    const bool parts = context_.options.depth_sequence;
    const int coordinates = context_.extent(Axis::data) * (parts ? 1 : context_.extent(Axis::depth));
    const int mine = parts ? context_.place(Axis::data)
                           : context_.place(Axis::data) * context_.extent(Axis::depth) + context_.place(Axis::depth);
    const Index each = step.sequences / step.micro_batches;
    batches_.resize(static_cast<std::size_t>(step.micro_batches));
    for (Index m = 0; m < step.micro_batches; ++m) {
      MicroBatch<T>& batch = batches_[static_cast<std::size_t>(m)];
      const Range held = part(each, coordinates, mine);
      batch.sequences = held.size();
      batch.first_sample = m * each + held.begin;
      batch.all_sequences = each;
      batch.tokens = step.tokens;
      if (parts) {
        batch.sequence_tokens = step.tokens;
        batch.token_ranges = depth_token_ranges(step.tokens, context_.extent(Axis::depth), context_.place(Axis::depth));
        batch.tokens = 0;
        for (const Range& range : batch.token_ranges) batch.tokens += range.size();
      }
      PlannedPass<T> pass;
      pass.batch = &batch;
      pass.training = true;
      pass.step = 1;
      pass.step_sequences = step.sequences;
      pass.micro_batches = step.micro_batches;
      pass.rows = plan_rows(context_, pass);
      passes_.push_back(std::move(pass));
    }
  }

  // f(row of the stream here, row among the step's).
  template <class F>
  void visit(std::size_t m, const F& f) const {
    const Rows& rows = passes_[m].rows.stream;
    Index row = 0;
    for (const Range& range : rows.ranges) {
      for (Index sequence = 0; sequence < rows.sequences; ++sequence) {
        for (Index token = range.begin; token < range.end; ++token, ++row)
          f(row, (batches_[m].first_sample + sequence) * reference_.s.tokens + token);
      }
    }
  }
  static double larger(double a, double b) { return b > a || std::isnan(b) ? b : a; }
  static double over_ranks(double value) {
    if (std::isnan(value)) value = 1e300;
    all_reduce_max<double>(launch().world(), {&value, 1}, Phase::control);
    return value;
  }
  double gap(const std::vector<Tensor<T>>& mine, const Numbers& all) const {
    double worst = 0;
    for (std::size_t m = 0; m < mine.size(); ++m) {
      visit(m, [&](Index row, Index global) {
        for (Index c = 0; c < cols().size(); ++c) {
          const double expected = all[static_cast<std::size_t>(global * reference_.o.width + cols().begin + c)];
          worst = larger(worst, std::abs(static_cast<double>(mine[m].data()[row * cols().size() + c]) - expected));
        }
      });
      if (mine[m].rows() != passes_[m].rows.stream.count()) worst = 1e300;
    }
    return over_ranks(worst);
  }

  MoeReference& reference_;
  MemoryLedger ledger_;
  Pool pool_{ledger_};
  ParamStore<T> store_;
  Deferred deferred_{4};
  GatherQueue<T> gathers_;
  LayerContext<T> context_;
  MoeLayer<T> layer_;
  std::vector<MicroBatch<T>> batches_;
  std::vector<PlannedPass<T>> passes_;
};

}  // namespace fourfold::test
