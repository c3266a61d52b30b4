#include "kernels/router.hpp"

#include <cmath>
#include <limits>

#include "kernels/lanes.hpp"
#include "kernels/math.hpp"

namespace fourfold::kernels {

template <class A>
void router_scores(const Space& space, Scores kind, Matrix<const A> logits, Matrix<A> scores, Vector<A> lse,
                   Vector<A> total) {
  const Index experts = logits.extent(1);
  const bool softmax = kind == Scores::softmax;
  Kokkos::parallel_for(
      "router_scores", Range1(space, 0, logits.extent(0)), KOKKOS_LAMBDA(Index r) {
        const A* row = logits.data() + r * experts;
        A* out = scores.data() + r * experts;
        const A top = lane_max<A, kFewLanes>(experts, [=](Index e) { return row[e]; });
        const A sum = lane_sum<A, kFewLanes>(experts, [=](Index e) { return fast_exp_below(row[e] - top); });
        const A log_sum = top + static_cast<A>(std::log(static_cast<double>(sum)));
        lse(r) = log_sum;
        total(r) = lane_sum<A, kFewLanes>(experts, [=](Index e) {
          out[e] = softmax ? fast_exp(row[e] - log_sum) : logistic(row[e]).value;
          return out[e];
        });
      });
}

namespace {

// The next candidate after (value, place) in the order: larger values first, of equal ones the lower place.
template <class A>
struct Candidate {
  A value;
  std::int32_t at;
  KOKKOS_FORCEINLINE_FUNCTION bool before(const Candidate& other) const {
    return value > other.value || (value == other.value && at < other.at);
  }
};

// A token's keys.
template <class A>
struct Keys {
  const A* row;
  const A* bias;  // null: none
  KOKKOS_FORCEINLINE_FUNCTION A operator()(Index e) const { return bias != nullptr ? row[e] + bias[e] : row[e]; }
};

template <class A>
KOKKOS_FUNCTION A group_key(const Keys<A>& keys, Index first, Index size, bool two) {
  A best = -std::numeric_limits<A>::infinity();
  A second = best;
  for (Index e = first; e < first + size; ++e) {
    const A key = keys(e);
    if (key > best) {
      second = best;
      best = key;
    } else if (key > second) {
      second = key;
    }
  }
  return two && size > 1 ? best + second : best;
}

}  // namespace

template <class A>
void router_top_k(const Space& space, const TopK& rule, Matrix<const A> keys, Vector<const A> bias,
                  Matrix<std::int32_t> choice) {
  const Index experts = keys.extent(1);
  const Index k = choice.extent(1);
  const Index groups = rule.groups;
  const Index top_groups = rule.top_groups;
  const Index group_size = experts / groups;
  const bool two = rule.kind == Scores::sigmoid;
  const A* added = bias.extent(0) > 0 ? bias.data() : nullptr;
  Kokkos::parallel_for(
      "router_top_k", Range1(space, 0, keys.extent(0)), KOKKOS_LAMBDA(Index r) {
        constexpr A kHighest = std::numeric_limits<A>::infinity();
        const Keys<A> key{keys.data() + r * experts, added};
        std::uint64_t allowed = ~std::uint64_t{0};
        if (top_groups < groups) {
          allowed = 0;
          Candidate<A> last{kHighest, -1};
          for (Index taken = 0; taken < top_groups; ++taken) {
            Candidate<A> best{-kHighest, static_cast<std::int32_t>(groups)};
            for (Index g = 0; g < groups; ++g) {
              const Candidate<A> next{group_key(key, g * group_size, group_size, two), static_cast<std::int32_t>(g)};
              if (last.before(next) && next.before(best)) best = next;
            }
            if (best.at == groups) best.at = static_cast<std::int32_t>(taken);
            allowed |= std::uint64_t{1} << best.at;
            last = best;
          }
        }
        Candidate<A> last{kHighest, -1};
        for (Index slot = 0; slot < k; ++slot) {
          Candidate<A> best{-kHighest, static_cast<std::int32_t>(experts)};
          for (Index e = 0; e < experts; ++e) {
            const Candidate<A> next{key(e), static_cast<std::int32_t>(e)};
            if (!last.before(next) || !next.before(best)) continue;
            if (top_groups == groups || (allowed >> (e / group_size) & 1u) != 0) best = next;
          }
          if (best.at == experts) best.at = static_cast<std::int32_t>(slot);
          choice(r, slot) = best.at;
          last = best;
        }
      });
}

void router_uniform(const Space& space, Vector<const std::int64_t> ids, Index experts, Matrix<std::int32_t> choice) {
  const Index k = choice.extent(1);
  Kokkos::parallel_for(
      "router_uniform", Range1(space, 0, choice.extent(0)), KOKKOS_LAMBDA(Index r) {
        for (Index slot = 0; slot < k; ++slot)
          choice(r, slot) = static_cast<std::int32_t>((ids(r) * k + slot) % experts);
      });
}

template <class A>
void router_zipf_keys(const Space& space, RandomStream stream, double exponent, Vector<const std::int64_t> ids,
                      Matrix<A> keys) {
  const Index experts = keys.extent(1);
  Kokkos::parallel_for(
      "router_zipf_keys", Range1(space, 0, keys.extent(0)), KOKKOS_LAMBDA(Index r) {
        for (Index e = 0; e < experts; ++e) {
          const double u = stream.uniform(static_cast<std::uint64_t>(ids(r) * experts + e)) + 0x1.0p-54;
          keys(r, e) = static_cast<A>(-exponent * std::log(static_cast<double>(e + 1)) - std::log(-std::log(u)));
        }
      });
}

template <class T>
void router_jitter(const Space& space, RandomStream stream, double jitter, Vector<const std::int64_t> ids,
                   Matrix<const T> x, Matrix<T> y) {
  const Index width = x.extent(1);
  Kokkos::parallel_for(
      "router_jitter", Range1(space, 0, x.extent(0)), KOKKOS_LAMBDA(Index r) {
        for (Index j = 0; j < width; ++j) {
          const double u = stream.uniform(static_cast<std::uint64_t>(ids(r) * width + j));
          y(r, j) = static_cast<T>(static_cast<Acc<T>>(x(r, j)) * static_cast<Acc<T>>(1.0 + jitter * (2.0 * u - 1.0)));
        }
      });
}

template <class A>
void router_weights_forward(const Space& space, bool renormalize, Matrix<const A> scores,
                            Matrix<const std::int32_t> choice, Matrix<A> weights) {
  const Index k = choice.extent(1);
  Kokkos::parallel_for(
      "router_weights_forward", Range1(space, 0, choice.extent(0)), KOKKOS_LAMBDA(Index r) {
        A sum = 0;
        for (Index slot = 0; slot < k; ++slot) sum += scores(r, chosen_expert(choice(r, slot)));
        for (Index slot = 0; slot < k; ++slot) {
          const A score = scores(r, chosen_expert(choice(r, slot)));
          weights(r, slot) = !renormalize ? score : sum > 0 ? score / sum : A(1) / static_cast<A>(k);
        }
      });
}

template <class T>
void router_backward(const Space& space, Scores kind, bool renormalize, Matrix<const Acc<T>> logits,
                     Vector<const Acc<T>> lse, Matrix<const std::int32_t> choice, Matrix<const Acc<T>> dweights,
                     const RouterLosses& losses, Matrix<T> dlogits) {
  using A = Acc<T>;
  const Index experts = logits.extent(1);
  const Index k = choice.extent(1);
  const bool softmax = kind == Scores::softmax;
  const bool has_aux = losses.aux.size() > 0;
  const Matrix<const double> aux = losses.aux;
  const bool one_scope = losses.aux.extent(0) == 1;
  const Vector<const std::int64_t> ids = losses.ids;
  const Index sequence_tokens = losses.sequence_tokens;
  const Index first_sequence = losses.first_sequence;
  const A z = static_cast<A>(2 * losses.z);
  Kokkos::parallel_for(
      "router_backward", Range1(space, 0, logits.extent(0)), KOKKOS_LAMBDA(Index r) {
        const A* row = logits.data() + r * experts;
        const A log_sum = lse(r);
        const auto score = [=](Index e) { return softmax ? fast_exp(row[e] - log_sum) : logistic(row[e]).value; };
        // The gradient of the score of a chosen expert, through the weights.
        A sum = 0;
        A mean = 0;
        if (renormalize) {
          for (Index slot = 0; slot < k; ++slot) sum += score(chosen_expert(choice(r, slot)));
          for (Index slot = 0; slot < k && sum > 0; ++slot)
            mean += score(chosen_expert(choice(r, slot))) / sum * dweights(r, slot);
        }
        const auto dscore = [=](Index e) {
          A d = 0;
          for (Index slot = 0; slot < k; ++slot) {
            if (chosen_expert(choice(r, slot)) != e) continue;
            d += !renormalize ? dweights(r, slot) : sum > 0 ? (dweights(r, slot) - mean) / sum : A(0);
          }
          return d;
        };
        const Index scope = one_scope || !has_aux ? 0 : ids(r) / sequence_tokens - first_sequence;
        const double* share = has_aux ? aux.data() + scope * experts : nullptr;
        const auto daux = [=](Index e) { return share != nullptr ? static_cast<A>(share[e]) : A(0); };
        A total = 0;  // of the scores
        A slope = 0;  // sum of score times gradient: of all for softmax, of the losses' part for sigmoid
        for (Index e = 0; e < experts; ++e) {
          const A s = score(e);
          total += s;
          slope += s * daux(e);
        }
        for (Index slot = 0; slot < k && softmax; ++slot) {
          const std::int32_t e = chosen_expert(choice(r, slot));
          const A d = !renormalize ? dweights(r, slot) : sum > 0 ? (dweights(r, slot) - mean) / sum : A(0);
          slope += score(e) * d;
        }
        for (Index e = 0; e < experts; ++e) {
          const A s = score(e);
          const A p = softmax ? s : fast_exp(row[e] - log_sum);
          A d = z * log_sum * p;
          if (softmax) {
            d += s * (dscore(e) + daux(e) - slope);
          } else {
            const Logistic<A> both = logistic(row[e]);
            d += both.value * both.complement * (dscore(e) + (daux(e) - slope / total) / total);
          }
          dlogits(r, e) = static_cast<T>(d);
        }
      });
}

template <class A>
void router_sums(const Space& space, Matrix<const A> scores, Vector<const A> total, Matrix<const std::int32_t> choice,
                 Vector<const Index> begin, Matrix<double> sums) {
  const Index experts = scores.extent(1);
  const Index k = choice.extent(1);
  constexpr Index kColumns = 16;  // of a task: a row's are read together
  const Index blocks = (experts + kColumns - 1) / kColumns;
  const Index scopes = sums.extent(0);
  Kokkos::parallel_for(
      "router_sums", Range1(space, 0, scopes * blocks), KOKKOS_LAMBDA(Index task) {
        const Index scope = task / blocks;
        const Index first = task % blocks * kColumns;
        const Index count = experts - first < kColumns ? experts - first : kColumns;
        double requests[kColumns] = {};
        double probabilities[kColumns] = {};
        for (Index r = begin(scope); r < begin(scope + 1); ++r) {
          const double inverse = 1.0 / static_cast<double>(total(r));
          for (Index j = 0; j < count; ++j) probabilities[j] += static_cast<double>(scores(r, first + j)) * inverse;
          for (Index slot = 0; slot < k; ++slot) {
            const Index j = chosen_expert(choice(r, slot)) - first;
            if (j >= 0 && j < count) requests[j] += 1;
          }
        }
        for (Index j = 0; j < count; ++j) {
          sums(scope, first + j) = requests[j];
          sums(scope, experts + first + j) = probabilities[j];
        }
      });
}

template <class A>
void router_statistics(const Space& space, Matrix<const A> scores, Vector<const A> total, Vector<const A> lse,
                       Vector<double> entropy, Vector<double> lse_squared) {
  const Index experts = scores.extent(1);
  Kokkos::parallel_for(
      "router_statistics", Range1(space, 0, scores.extent(0)), KOKKOS_LAMBDA(Index r) {
        double sum = 0;
        for (Index e = 0; e < experts; ++e) {
          const double p = static_cast<double>(scores(r, e)) / static_cast<double>(total(r));
          if (p > 0) sum -= p * std::log(p);
        }
        entropy(r) = sum;
        lse_squared(r) = static_cast<double>(lse(r)) * static_cast<double>(lse(r));
      });
}

#define FOURFOLD_ROUTER(A)                                                                                          \
  template void router_scores(const Space&, Scores, Matrix<const A>, Matrix<A>, Vector<A>, Vector<A>);              \
  template void router_top_k(const Space&, const TopK&, Matrix<const A>, Vector<const A>, Matrix<std::int32_t>);    \
  template void router_zipf_keys(const Space&, RandomStream, double, Vector<const std::int64_t>, Matrix<A>);        \
  template void router_weights_forward(const Space&, bool, Matrix<const A>, Matrix<const std::int32_t>, Matrix<A>); \
  template void router_sums(const Space&, Matrix<const A>, Vector<const A>, Matrix<const std::int32_t>,             \
                            Vector<const Index>, Matrix<double>);                                                   \
  template void router_statistics(const Space&, Matrix<const A>, Vector<const A>, Vector<const A>, Vector<double>,  \
                                  Vector<double>);
FOURFOLD_ROUTER(float)
FOURFOLD_ROUTER(double)
#undef FOURFOLD_ROUTER

#define FOURFOLD_ROUTER_ROWS(T)                                                                                   \
  template void router_jitter<T>(const Space&, RandomStream, double, Vector<const std::int64_t>, Matrix<const T>, \
                                 Matrix<T>);                                                                      \
  template void router_backward<T>(const Space&, Scores, bool, Matrix<const Acc<T>>, Vector<const Acc<T>>,        \
                                   Matrix<const std::int32_t>, Matrix<const Acc<T>>, const RouterLosses&, Matrix<T>);
FOURFOLD_ROUTER_ROWS(float)
FOURFOLD_ROUTER_ROWS(double)
FOURFOLD_ROUTER_ROWS(bf16)
#undef FOURFOLD_ROUTER_ROWS

}  // namespace fourfold::kernels
