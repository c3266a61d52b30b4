#include "kernels/expert_rows.hpp"

#include <algorithm>

#include "kernels/lanes.hpp"
#include "kernels/math.hpp"
#include "kernels/stream.hpp"

namespace fourfold::kernels {

namespace {

// Pairs that one task sorts: a device has many tasks, a host few.
constexpr Index kPairsOfTask = kStreamsOnHost ? 4096 : 64;

Index sort_tasks(Index pairs) {
  return (pairs + kPairsOfTask - 1) / kPairsOfTask;
}

// The first i in [begin, end) with x[i] >= value; end where there is none.
KOKKOS_FORCEINLINE_FUNCTION Index lower_bound(const std::int64_t* x, Index begin, Index end, std::int64_t value) {
  while (begin < end) {
    const Index middle = begin + (end - begin) / 2;
    if (x[middle] < value) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

// The last i in [0, n) with x[i] <= value.
KOKKOS_FORCEINLINE_FUNCTION Index run_of(const Index* x, Index n, Index value) {
  Index begin = 0;
  Index end = n;
  while (end - begin > 1) {
    const Index middle = begin + (end - begin) / 2;
    if (x[middle] <= value) {
      begin = middle;
    } else {
      end = middle;
    }
  }
  return begin;
}

}  // namespace

void number_tokens(const Space& space, const TokenRanges& ranges, Vector<std::int64_t> ids, Vector<Index> rows) {
  const TokenRanges all = ranges;
  const Index count = static_cast<Index>(ranges.row.extent(0));
  const Index tokens = static_cast<Index>(std::max(ids.extent(0), rows.extent(0)));
  Kokkos::parallel_for(
      "number_tokens", Range1(space, 0, tokens), KOKKOS_LAMBDA(Index i) {
        const Index each = all.at(count);  // tokens of a sequence here
        const Index sequence = (all.first + i) / each;
        const Index place = (all.first + i) % each;
        const Index range = run_of(all.at.data(), count, place);
        const Index inside = place - all.at(range);
        const Index size = all.at(range + 1) - all.at(range);
        if (ids.size() > 0) ids(i) = (all.first_sequence + sequence) * all.sequence_tokens + all.begin(range) + inside;
        if (rows.size() > 0) rows(i) = all.row(range) + sequence * size + inside;
      });
}

Index sort_pairs_scratch(Index pairs, Index experts) {
  return sort_tasks(pairs) * experts;
}

void sort_pairs(const Space& space, Vector<const std::int32_t> choice, Vector<const Index> place, Vector<Index> next,
                Vector<Index> position, Vector<Index> order, Vector<Index> counts) {
  const Index pairs = choice.extent(0);
  const Index experts = place.extent(0);
  const Index tasks = sort_tasks(pairs);
  // next(q x tasks + t): pairs of task t at place q; then, where the first of them goes.
  Kokkos::parallel_for(
      "sort_pairs_count", Range1(space, 0, tasks), KOKKOS_LAMBDA(Index task) {
        for (Index q = 0; q < experts; ++q) next(q * tasks + task) = 0;
        const Index end = (task + 1) * kPairsOfTask < pairs ? (task + 1) * kPairsOfTask : pairs;
        for (Index p = task * kPairsOfTask; p < end; ++p) {
          if (choice(p) >= 0) ++next(place(choice(p)) * tasks + task);
        }
      });
  Kokkos::parallel_for(
      "sort_pairs_total", Range1(space, 0, experts), KOKKOS_LAMBDA(Index q) {
        Index count = 0;
        for (Index task = 0; task < tasks; ++task) count += next(q * tasks + task);
        counts(q) = count;
      });
  Kokkos::parallel_scan(
      "sort_pairs_scan", Range1(space, 0, experts * tasks), KOKKOS_LAMBDA(Index i, Index & before, bool last) {
        const Index count = next(i);
        if (last) next(i) = before;
        before += count;
      });
  Kokkos::parallel_for(
      "sort_pairs_place", Range1(space, 0, tasks), KOKKOS_LAMBDA(Index task) {
        const Index end = (task + 1) * kPairsOfTask < pairs ? (task + 1) * kPairsOfTask : pairs;
        for (Index p = task * kPairsOfTask; p < end; ++p) {
          if (choice(p) < 0) {
            position(p) = -1;
            continue;
          }
          const Index at = next(place(choice(p)) * tasks + task)++;
          position(p) = at;
          order(at) = p;
        }
      });
}

void pair_ids(const Space& space, Index k, Vector<const std::int64_t> tokens, Vector<const Index> order,
              Vector<const Index> rank_begin, Index copies, Vector<std::int64_t> ids) {
  const Index ranks = static_cast<Index>(rank_begin.extent(0)) - 1;
  Kokkos::parallel_for(
      "pair_ids", Range1(space, 0, order.extent(0)), KOKKOS_LAMBDA(Index i) {
        const Index rank = run_of(rank_begin.data(), ranks, i);
        const Index begin = rank_begin(rank);
        const Index count = rank_begin(rank + 1) - begin;
        const std::int64_t id = tokens(order(i) / k) * k + order(i) % k;
        for (Index c = 0; c < copies; ++c) ids(begin * copies + c * count + (i - begin)) = id;
      });
}

void merge_runs(const Space& space, const Runs& runs, Vector<const std::int64_t> ids, Vector<Index> row_of) {
  const Runs all = runs;
  const Index experts = runs.experts;
  Kokkos::parallel_for(
      "merge_runs", Range1(space, 0, row_of.extent(0)), KOKKOS_LAMBDA(Index i) {
        const Index run = run_of(all.run_begin.data(), all.sources * experts, i);
        const Index source = run / experts;
        const Index expert = run % experts;
        const Index inside = i - all.run_begin(run);
        Index at = all.first(expert) + inside;
        for (Index other = 0; other < all.sources; ++other) {
          if (other == source) continue;
          const Index begin = all.run_begin(other * experts + expert);
          const Index end = all.run_begin(other * experts + expert + 1);
          at += lower_bound(ids.data(), begin, end, ids(i)) - begin;
        }
        row_of(at) = all.row_begin(run) + inside;
      });
}

void find_pairs(const Space& space, Index k, Vector<const std::int64_t> ids, Vector<const Index> id_begin,
                Vector<const std::int64_t> tokens, Vector<const Index> token_begin, Vector<Index> pair) {
  const Index sources = static_cast<Index>(id_begin.extent(0)) - 1;
  Kokkos::parallel_for(
      "find_pairs", Range1(space, 0, ids.extent(0)), KOKKOS_LAMBDA(Index i) {
        const Index source = run_of(id_begin.data(), sources, i);
        const Index row = lower_bound(tokens.data(), token_begin(source), token_begin(source + 1), ids(i) / k);
        pair(i) = row * k + ids(i) % k;
      });
}

template <class T>
void gather_rows(const Space& space, Matrix<const T> x, Vector<const Index> rows, Matrix<T> y) {
  const Index width = y.extent(1);
  const bool around = goes_around_caches<T>(y.data(), y.size(), x.data());
  Kokkos::parallel_for(
      "gather_rows", Range1(space, 0, y.extent(0)),
      KOKKOS_LAMBDA(Index i) { copy_run(around, width, x.data() + rows(i) * width, y.data() + i * width); });
  finish_stores_around_caches(around);
}

template <class T>
void scatter_rows(const Space& space, Matrix<const T> x, Vector<const Index> rows, Matrix<T> y) {
  const Index width = x.extent(1);
  const bool around = goes_around_caches<T>(y.data(), x.size(), x.data());
  Kokkos::parallel_for(
      "scatter_rows", Range1(space, 0, x.extent(0)),
      KOKKOS_LAMBDA(Index i) { copy_run(around, width, x.data() + i * width, y.data() + rows(i) * width); });
  finish_stores_around_caches(around);
}

template <class T>
void gather_pairs(const Space& space, Matrix<const T> x, Index k, Vector<const Acc<T>> weights,
                  Vector<const Index> order, Matrix<T> rows) {
  const Index width = rows.extent(1);
  const bool weighted = weights.size() > 0;
  const bool around = goes_around_caches<T>(rows.data(), rows.size(), x.data());
  Kokkos::parallel_for(
      "gather_pairs", Range1(space, 0, rows.extent(0)), KOKKOS_LAMBDA(Index i) {
        const Index pair = order(i);
        const T* from = x.data() + pair / k * width;
        T* to = rows.data() + i * width;
        if (weighted) {
          const Acc<T> weight = weights(pair);
          write_run(around, width, to, [=](Index j) { return static_cast<T>(weight * static_cast<Acc<T>>(from[j])); });
        } else {
          copy_run(around, width, from, to);
        }
      });
  finish_stores_around_caches(around);
}

template <class T>
void combine_pairs_forward(const Space& space, Matrix<const T> rows, Matrix<const Index> position,
                           Vector<const Acc<T>> weights, Matrix<const Acc<T>> base, Matrix<T> y) {
  using A = Acc<T>;
  const Index width = y.extent(1);
  const Index k = position.extent(1);
  const bool weighted = weights.size() > 0;
  const bool based = base.size() > 0;
  const bool around = goes_around_caches<T>(y.data(), y.size(), rows.data());
  Kokkos::parallel_for(
      "combine_pairs_forward", Range1(space, 0, y.extent(0)), KOKKOS_LAMBDA(Index t) {
        constexpr Index kChunk = kStreamChunk / static_cast<Index>(sizeof(T));
        A sum[kChunk];
        for (Index begin = 0; begin < width; begin += kChunk) {
          const Index n = width - begin < kChunk ? width - begin : kChunk;
          for (Index j = 0; j < n; ++j) sum[j] = based ? base(t, begin + j) : A(0);
          for (Index slot = 0; slot < k; ++slot) {
            const Index at = position(t, slot);
            if (at < 0) continue;
            const A weight = weighted ? weights(t * k + slot) : A(1);
            const T* row = rows.data() + at * width + begin;
            for (Index j = 0; j < n; ++j) sum[j] += weight * static_cast<A>(row[j]);
          }
          const A* made = sum;
          write_run(around, n, y.data() + t * width + begin, [=](Index j) { return static_cast<T>(made[j]); });
        }
      });
  finish_stores_around_caches(around);
}

template <class T>
void combine_pairs_backward(const Space& space, Matrix<const T> rows, Matrix<const Index> position, Matrix<const T> dy,
                            Matrix<Acc<T>> dweights) {
  using A = Acc<T>;
  const Index width = dy.extent(1);
  const Index k = position.extent(1);
  Kokkos::parallel_for(
      "combine_pairs_backward", Range1(space, 0, position.size()), KOKKOS_LAMBDA(Index pair) {
        const Index t = pair / k;
        const Index at = position(t, pair % k);
        const T* out = rows.data() + (at < 0 ? 0 : at) * width;
        const T* gradient = dy.data() + t * width;
        dweights(t, pair % k) =
            at < 0 ? A(0)
                   : lane_sum<A>(width, [=](Index j) { return static_cast<A>(gradient[j]) * static_cast<A>(out[j]); });
      });
}

namespace {

template <class T>
KOKKOS_FORCEINLINE_FUNCTION Acc<T> dot(Index n, const T* a, const T* b) {
  return lane_sum<Acc<T>>(n, [=](Index j) { return static_cast<Acc<T>>(a[j]) * static_cast<Acc<T>>(b[j]); });
}

}  // namespace

template <class T>
void weigh_rows_forward(const Space& space, Matrix<const T> x, Vector<const Acc<T>> w, Matrix<T> y) {
  const Index width = x.extent(1);
  Kokkos::parallel_for(
      "weigh_rows_forward", Range1(space, 0, x.extent(0)), KOKKOS_LAMBDA(Index i) {
        for (Index j = 0; j < width; ++j) y(i, j) = static_cast<T>(w(i) * static_cast<Acc<T>>(x(i, j)));
      });
}

template <class T>
void weigh_rows_backward(const Space& space, Matrix<const T> x, Vector<const Acc<T>> w, Matrix<const T> dy,
                         Matrix<T> dx, Vector<Acc<T>> dw) {
  const Index width = x.extent(1);
  Kokkos::parallel_for(
      "weigh_rows_backward", Range1(space, 0, x.extent(0)), KOKKOS_LAMBDA(Index i) {
        dw(i) = dot<T>(width, x.data() + i * width, dy.data() + i * width);
        for (Index j = 0; j < width; ++j) dx(i, j) = static_cast<T>(w(i) * static_cast<Acc<T>>(dy(i, j)));
      });
}

template <class T>
void gate_rows_forward(const Space& space, Matrix<const T> x, Vector<const Acc<T>> logit, Matrix<T> y) {
  const Index width = x.extent(1);
  Kokkos::parallel_for(
      "gate_rows_forward", Range1(space, 0, x.extent(0)), KOKKOS_LAMBDA(Index i) {
        const Acc<T> open = logistic(logit(i)).value;
        for (Index j = 0; j < width; ++j)
          y(i, j) = static_cast<T>(static_cast<Acc<T>>(y(i, j)) + open * static_cast<Acc<T>>(x(i, j)));
      });
}

template <class T>
void gate_rows_dots(const Space& space, Matrix<const T> x, Matrix<const T> dy, Vector<Acc<T>> dots) {
  const Index width = x.extent(1);
  Kokkos::parallel_for(
      "gate_rows_dots", Range1(space, 0, x.extent(0)),
      KOKKOS_LAMBDA(Index i) { dots(i) = dot<T>(width, x.data() + i * width, dy.data() + i * width); });
}

template <class T>
void gate_rows_backward(const Space& space, Vector<const Acc<T>> logit, Vector<const Acc<T>> dots, Matrix<const T> dy,
                        Matrix<T> dx, Vector<T> dlogit) {
  const Index width = dy.extent(1);
  Kokkos::parallel_for(
      "gate_rows_backward", Range1(space, 0, dy.extent(0)), KOKKOS_LAMBDA(Index i) {
        const Logistic<Acc<T>> open = logistic(logit(i));
        dlogit(i) = static_cast<T>(open.value * open.complement * dots(i));
        for (Index j = 0; j < width; ++j) dx(i, j) = static_cast<T>(open.value * static_cast<Acc<T>>(dy(i, j)));
      });
}

#define FOURFOLD_EXPERT_ROWS(T)                                                                                    \
  template void gather_rows(const Space&, Matrix<const T>, Vector<const Index>, Matrix<T>);                        \
  template void scatter_rows(const Space&, Matrix<const T>, Vector<const Index>, Matrix<T>);                       \
  template void gather_pairs<T>(const Space&, Matrix<const T>, Index, Vector<const Acc<T>>, Vector<const Index>,   \
                                Matrix<T>);                                                                        \
  template void combine_pairs_forward<T>(const Space&, Matrix<const T>, Matrix<const Index>, Vector<const Acc<T>>, \
                                         Matrix<const Acc<T>>, Matrix<T>);                                         \
  template void combine_pairs_backward<T>(const Space&, Matrix<const T>, Matrix<const Index>, Matrix<const T>,     \
                                          Matrix<Acc<T>>);                                                         \
  template void weigh_rows_forward<T>(const Space&, Matrix<const T>, Vector<const Acc<T>>, Matrix<T>);             \
  template void weigh_rows_backward<T>(const Space&, Matrix<const T>, Vector<const Acc<T>>, Matrix<const T>,       \
                                       Matrix<T>, Vector<Acc<T>>);                                                 \
  template void gate_rows_forward<T>(const Space&, Matrix<const T>, Vector<const Acc<T>>, Matrix<T>);              \
  template void gate_rows_dots<T>(const Space&, Matrix<const T>, Matrix<const T>, Vector<Acc<T>>);                 \
  template void gate_rows_backward<T>(const Space&, Vector<const Acc<T>>, Vector<const Acc<T>>, Matrix<const T>,   \
                                      Matrix<T>, Vector<T>);
FOURFOLD_EXPERT_ROWS(float)
FOURFOLD_EXPERT_ROWS(double)
FOURFOLD_EXPERT_ROWS(bf16)
#undef FOURFOLD_EXPERT_ROWS

}  // namespace fourfold::kernels
