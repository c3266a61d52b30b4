#include "tensor/movement.hpp"

#include "grid/partition.hpp"
#include "tensor/number.hpp"

namespace fourfold {

template <class A>
void sum_over(const Communicator& group, const Tensor<A>& x, Summation summation, CallSite site) {
  Space().fence();
  all_reduce_sum<A>(group, wire(x.vector()), summation, site);
}

template <class A>
Pending start_sum_over(const Communicator& group, const Tensor<A>& x, Summation summation, CallSite site) {
  Space().fence();
  return start_all_reduce_sum<A>(group, wire(x.vector()), summation, site);
}

template <class T>
Gather<T>::Gather(const Communicator& group, Index total, Summation summation) : group_(&group), summation_(summation) {
  for (int r = 0; r < group.size(); ++r) sizes_.push_back(part(total, group.size(), r).size());
}

template <class T>
Pending Gather<T>::start_forward(kernels::Vector<const T> mine, kernels::Vector<T> whole, CallSite site) const {
  Space().fence();
  return start_all_gather<Wire<T>>(*group_, wire(mine), wire(whole), sizes_, site);
}

template <class T>
Pending Gather<T>::start_adjoint(kernels::Vector<const kernels::Acc<T>> whole, kernels::Vector<kernels::Acc<T>> mine,
                                 Where where) const {
  Space().fence();
  return start_reduce_scatter_sum<kernels::Acc<T>>(*group_, wire(whole), wire(mine), sizes_, summation_,
                                                   {Phase::backward, where});
}

template void sum_over<float>(const Communicator&, const Tensor<float>&, Summation, CallSite);
template void sum_over<double>(const Communicator&, const Tensor<double>&, Summation, CallSite);
template Pending start_sum_over<float>(const Communicator&, const Tensor<float>&, Summation, CallSite);
template Pending start_sum_over<double>(const Communicator&, const Tensor<double>&, Summation, CallSite);
template class Gather<float>;
template class Gather<double>;
template class Gather<kernels::bf16>;

}  // namespace fourfold
