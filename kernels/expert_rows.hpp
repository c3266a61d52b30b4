// Rows of tokens on their way to experts and back. A pair is a token and one of its k choices: pair p = token x k +
// slot. Pairs are sorted by the expert's place (a stable counting sort: an exclusive scan of counts), and rows move by
// lists of row numbers.
#pragma once

#include "kernels/types.hpp"

namespace fourfold::kernels {

// The tokens of equal sequences, which have several ranges of tokens in ascending order: range r is tokens begin(r) on,
// at(r + 1) - at(r) of them, at(r) after a sequence's first; the rows of a range begin with row(r), sequence by
// sequence. For the i-th of the tokens from `first` on, in the order of (sequence, token): its number (first_sequence +
// sequence) x sequence_tokens + token, and its row (either may be empty: not asked for).
struct TokenRanges {
  Vector<const Index> begin, at, row;
  Index first = 0, first_sequence = 0, sequence_tokens = 0;
};
void number_tokens(const Space& space, const TokenRanges& ranges, Vector<std::int64_t> ids, Vector<Index> rows);

// Elements of scratch that sort_pairs needs.
Index sort_pairs_scratch(Index pairs, Index experts);
// choice: pairs (below zero: dropped, sorted nowhere). place(e): of expert e among all. position(p): of pair p among
// the sorted ones, -1 for a dropped one; order: the pairs in sorted order (its first ones, where some were dropped);
// counts(q): pairs of the expert at place q.
void sort_pairs(const Space& space, Vector<const std::int32_t> choice, Vector<const Index> place, Vector<Index> scratch,
                Vector<Index> position, Vector<Index> order, Vector<Index> counts);

// ids(..) of the sorted pairs: (number of the token) x k + slot. Those of rank r, order(rank_begin(r)) on, are written
// `copies` times side by side, for as many receivers.
void pair_ids(const Space& space, Index k, Vector<const std::int64_t> tokens, Vector<const Index> order,
              Vector<const Index> rank_begin, Index copies, Vector<std::int64_t> ids);

// Sorted runs from several sources, several experts each, into one order: by expert, then by id. ids: source by source,
// expert by expert, each run ascending. run_begin: of run (source x experts + expert), and the end; row_begin: its
// first row among those that arrived; first(e): of expert e in the order. row_of(i): the arrived row that is i-th.
struct Runs {
  Index sources = 0, experts = 0;
  Vector<const Index> run_begin, row_begin, first;
};
void merge_runs(const Space& space, const Runs& runs, Vector<const std::int64_t> ids, Vector<Index> row_of);

// For sorted pair ids (token number x k + slot) of one source after the other, where the source's tokens are known by
// their numbers: pair(i) = (row among all sources' tokens) x k + slot. id_begin, token_begin: of each source, and the
// end.
void find_pairs(const Space& space, Index k, Vector<const std::int64_t> ids, Vector<const Index> id_begin,
                Vector<const std::int64_t> tokens, Vector<const Index> token_begin, Vector<Index> pair);

// y(i) = x(rows(i)), and y(rows(i)) = x(i), where rows are distinct.
template <class T>
void gather_rows(const Space& space, Matrix<const T> x, Vector<const Index> rows, Matrix<T> y);
template <class T>
void scatter_rows(const Space& space, Matrix<const T> x, Vector<const Index> rows, Matrix<T> y);

// rows(i) = (weight of the pair) x(its token), pair order(i). weights: R x k, empty: ones.
template <class T>
void gather_pairs(const Space& space, Matrix<const T> x, Index k, Vector<const Acc<T>> weights,
                  Vector<const Index> order, Matrix<T> rows);
// y(t) = base(t) + sum over slots of (weight) rows(position), in slot order. base empty: zeros. A token without rows
// gives base.
template <class T>
void combine_pairs_forward(const Space& space, Matrix<const T> rows, Matrix<const Index> position,
                           Vector<const Acc<T>> weights, Matrix<const Acc<T>> base, Matrix<T> y);
// dweights(t, slot) = <dy(t), rows(position)>, 0 without a row.
template <class T>
void combine_pairs_backward(const Space& space, Matrix<const T> rows, Matrix<const Index> position, Matrix<const T> dy,
                            Matrix<Acc<T>> dweights);

// y(i) = w(i) x(i), row by row; its adjoint: dx(i) = w(i) dy(i) and dw(i) = <x(i), dy(i)>. dx may be dy.
template <class T>
void weigh_rows_forward(const Space& space, Matrix<const T> x, Vector<const Acc<T>> w, Matrix<T> y);
template <class T>
void weigh_rows_backward(const Space& space, Matrix<const T> x, Vector<const Acc<T>> w, Matrix<const T> dy,
                         Matrix<T> dx, Vector<Acc<T>> dw);

// y(i) += sigmoid(logit(i)) x(i); its adjoint in parts: dots(i) = <x(i), dy(i)>, of all columns once summed; then
// dx(i) = sigmoid dy(i) and dlogit(i) = sigmoid (1 - sigmoid) dots(i).
template <class T>
void gate_rows_forward(const Space& space, Matrix<const T> x, Vector<const Acc<T>> logit, Matrix<T> y);
template <class T>
void gate_rows_dots(const Space& space, Matrix<const T> x, Matrix<const T> dy, Vector<Acc<T>> dots);
template <class T>
void gate_rows_backward(const Space& space, Vector<const Acc<T>> logit, Vector<const Acc<T>> dots, Matrix<const T> dy,
                        Matrix<T> dx, Vector<T> dlogit);

}  // namespace fourfold::kernels
