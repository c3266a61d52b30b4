// The router of a mixture of experts: scores of a token over the experts, the k best, their weights, and the losses
// that balance them. R tokens, E experts, k choices. A: the type of accumulation.
//
// A choice is an expert's number, or its complement (~e) where the pair was dropped: it then moves nothing, but counts
// in the weights' sum and among the requests.
#pragma once

#include "kernels/philox.hpp"
#include "kernels/types.hpp"

namespace fourfold::kernels {

enum class Scores { softmax, sigmoid };

KOKKOS_FORCEINLINE_FUNCTION std::int32_t chosen_expert(std::int32_t choice) {
  return choice < 0 ? ~choice : choice;
}

// scores: exp(logit - lse), or 1 / (1 + exp(-logit)). lse = log sum_e exp(logit), total = sum of the row's scores.
template <class A>
void router_scores(const Space& space, Scores kind, Matrix<const A> logits, Matrix<A> scores, Vector<A> lse,
                   Vector<A> total);

// The k = choice.extent(1) largest keys of each row, largest first; of equal ones the lower expert. Only experts of the
// top_groups best of `groups` (at most 64) equal groups: a group's key is its largest (softmax) or the sum of its two
// largest (sigmoid). bias (empty: none) is added to the keys. A row without an order (NaN) takes the first experts.
struct TopK {
  Scores kind = Scores::softmax;
  Index groups = 1, top_groups = 1;
};
template <class A>
void router_top_k(const Space& space, const TopK& rule, Matrix<const A> keys, Vector<const A> bias,
                  Matrix<std::int32_t> choice);

// Forced routing, by the tokens' numbers. Uniform: pair (id, slot) goes to expert (id k + slot) mod E. Zipf: keys whose
// k largest are k draws without replacement, expert e with weight (e + 1)^-exponent (Gumbel's trick).
void router_uniform(const Space& space, Vector<const std::int64_t> ids, Index experts, Matrix<std::int32_t> choice);
template <class A>
void router_zipf_keys(const Space& space, RandomStream stream, double exponent, Vector<const std::int64_t> ids,
                      Matrix<A> keys);

// x (1 + jitter (2 u - 1)), u a draw by the token's number and the column.
template <class T>
void router_jitter(const Space& space, RandomStream stream, double jitter, Vector<const std::int64_t> ids,
                   Matrix<const T> x, Matrix<T> y);

// weights = scores of the chosen, over their sum where `renormalize` (equal weights where that is zero).
template <class A>
void router_weights_forward(const Space& space, bool renormalize, Matrix<const A> scores,
                            Matrix<const std::int32_t> choice, Matrix<A> weights);

// How the losses act on the logits: each token's probabilities (scores / total) have the gradient aux(scope of the
// token, e), its lse^2 the factor z. With several scopes they are the sequences from first_sequence on.
struct RouterLosses {
  Matrix<const double> aux;        // scopes x E; empty: none
  Vector<const std::int64_t> ids;  // R: the tokens' numbers
  Index sequence_tokens = 1, first_sequence = 0;
  double z = 0;
};
template <class T>
void router_backward(const Space& space, Scores kind, bool renormalize, Matrix<const Acc<T>> logits,
                     Vector<const Acc<T>> lse, Matrix<const std::int32_t> choice, Matrix<const Acc<T>> dweights,
                     const RouterLosses& losses, Matrix<T> dlogits);

// Per scope (rows [begin(s), begin(s + 1))): requests of each expert, then sums of the probabilities. sums: scopes x
// 2E.
template <class A>
void router_sums(const Space& space, Matrix<const A> scores, Vector<const A> total, Matrix<const std::int32_t> choice,
                 Vector<const Index> begin, Matrix<double> sums);
// Per token: the entropy of its probabilities in nats, and lse^2.
template <class A>
void router_statistics(const Space& space, Matrix<const A> scores, Vector<const A> total, Vector<const A> lse,
                       Vector<double> entropy, Vector<double> lse_squared);

}  // namespace fourfold::kernels
