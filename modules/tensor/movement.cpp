#include "tensor/movement.hpp"

#include "grid/partition.hpp"

namespace fourfold {

namespace {

template <class T>
std::span<T> span_of(const kernels::Vector<T>& x) {
  return {x.data(), x.extent(0)};
}

}  // namespace

template <class T>
void sum_over(const Communicator& group, const Tensor<T>& x, Summation summation, Phase phase) {
  Space().fence();
  all_reduce_sum<T>(group, {x.data(), static_cast<std::size_t>(x.size())}, summation, phase);
}

template <class T>
Pending start_sum_over(const Communicator& group, const Tensor<T>& x, Summation summation, Phase phase) {
  Space().fence();
  return start_all_reduce_sum<T>(group, {x.data(), static_cast<std::size_t>(x.size())}, summation, phase);
}

template <class T>
Gather<T>::Gather(const Communicator& group, Index total, Summation summation) : group_(&group), summation_(summation) {
  for (int r = 0; r < group.size(); ++r) sizes_.push_back(part(total, group.size(), r).size());
}

template <class T>
Pending Gather<T>::start_forward(kernels::Vector<const T> mine, kernels::Vector<T> whole, Phase phase) const {
  Space().fence();
  return start_all_gather<T>(*group_, span_of<const T>(mine), span_of<T>(whole), sizes_, phase);
}

template <class T>
Pending Gather<T>::start_adjoint(kernels::Vector<const T> whole, kernels::Vector<T> mine) const {
  Space().fence();
  return start_reduce_scatter_sum<T>(*group_, span_of<const T>(whole), span_of<T>(mine), sizes_, summation_,
                                     Phase::backward);
}

template void sum_over<float>(const Communicator&, const Tensor<float>&, Summation, Phase);
template void sum_over<double>(const Communicator&, const Tensor<double>&, Summation, Phase);
template Pending start_sum_over<float>(const Communicator&, const Tensor<float>&, Summation, Phase);
template Pending start_sum_over<double>(const Communicator&, const Tensor<double>&, Summation, Phase);
template class Gather<float>;
template class Gather<double>;

}  // namespace fourfold
