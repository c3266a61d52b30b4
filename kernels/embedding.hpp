// Table look-up and its adjoint. The table may be a part of the rows and columns of the logical one: ids outside
// [first_id, first_id + rows) give zero rows (another rank holds them) and take no gradient.
#pragma once

#include "kernels/row_positions.hpp"
#include "kernels/types.hpp"

namespace fourfold::kernels {

// y[r, :] = table[ids[r] - first_id, :].  ids: R, table: v x D, y: R x D, of T or Acc<T>.
template <class T, class Y = T>
void embedding_forward(const Space& space, Vector<const std::int32_t> ids, Matrix<const T> table, Index first_id,
                       Matrix<Y> y);
// dtable[ids[r] - first_id, :] += dy[r, :], rows in ascending order (no atomics: repeatable).
template <class T>
void embedding_backward(const Space& space, Vector<const std::int32_t> ids, Matrix<const T> dy, Index first_id,
                        Matrix<Acc<T>> dtable);

// Learned positions.  y[r, :] += table[position of row r, :].
template <class T>
void position_forward(const Space& space, Matrix<const T> table, const RowPositions& rows, Matrix<T> y);
template <class T>
void position_backward(const Space& space, Matrix<const T> dy, const RowPositions& rows, Matrix<Acc<T>> dtable);

}  // namespace fourfold::kernels
