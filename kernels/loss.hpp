// Losses, split so that the vocabulary may be cut over ranks. Targets below zero count for nothing: no loss, no
// gradient.
//
// Cross entropy of a row: log(sum_v exp(z_v - max)) + max - z_target. Passes: max (reduce by maximum), then the sum of
// exponentials and the target's logit (reduce by sum), then loss; backward makes the gradient from the reduced
// statistics.
#pragma once

#include "kernels/types.hpp"

namespace fourfold::kernels {

// Rows that have a target. Blocks.
Index count_targets(const Space& space, Vector<const std::int32_t> targets);

// logits: R x v, local columns [first_id, first_id + v) of the vocabulary. An empty part gives -infinity.
template <class T>
void cross_entropy_max(const Space& space, Matrix<const T> logits, Vector<Acc<T>> max);
// sum_exp[r] = sum_v exp(z - max[r]); target_logit[r] = z[r, target] where this part holds it, else 0.
template <class T>
void cross_entropy_sums(const Space& space, Matrix<const T> logits, Vector<const Acc<T>> max,
                        Vector<const std::int32_t> targets, Index first_id, Vector<Acc<T>> sum_exp,
                        Vector<Acc<T>> target_logit);
// loss[r] from the reduced statistics (0 for a target below zero).
template <class T>
void cross_entropy_forward(const Space& space, Vector<const Acc<T>> max, Vector<const Acc<T>> sum_exp,
                           Vector<const Acc<T>> target_logit, Vector<const std::int32_t> targets, Vector<double> loss);
// dlogits = scale (softmax - onehot(target)); dlogits may be the logits themselves.
template <class T>
void cross_entropy_backward(const Space& space, Matrix<const T> logits, Vector<const Acc<T>> max,
                            Vector<const Acc<T>> sum_exp, Vector<const std::int32_t> targets, Index first_id,
                            double scale, Matrix<T> dlogits);

// Squared error: loss[r] = 1/2 sum_j (y - target)^2 over the local columns; dy = (y - target) scale.
template <class T>
void squared_error_forward(const Space& space, Matrix<const T> y, Matrix<const T> target, Vector<double> loss);
template <class T>
void squared_error_backward(const Space& space, Matrix<const T> y, Matrix<const T> target, double scale, Matrix<T> dy);
// The same against one-hot targets (column targets[r] - first_id is 1, the rest 0).
template <class T>
void squared_error_onehot_forward(const Space& space, Matrix<const T> y, Vector<const std::int32_t> targets,
                                  Index first_id, Vector<double> loss);
template <class T>
void squared_error_onehot_backward(const Space& space, Matrix<const T> y, Vector<const std::int32_t> targets,
                                   Index first_id, double scale, Matrix<T> dy);

}  // namespace fourfold::kernels
