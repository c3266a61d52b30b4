// Numbers on their way: between ranks, and between the compute type and the type of sums.
#pragma once

#include <span>
#include <type_traits>

#include "kernels/vector.hpp"
#include "tensor/tensor.hpp"

namespace fourfold {

// What carries T in a message: bf16 goes as its 16 bits (MPI has no such type; sums are of Acc<T>).
template <class T>
using Wire = std::conditional_t<std::is_same_v<std::remove_const_t<T>, kernels::bf16>,
                                std::conditional_t<std::is_const_v<T>, const std::uint16_t, std::uint16_t>, T>;

template <class T>
std::span<Wire<T>> wire(T* data, Index size) {
  return {reinterpret_cast<Wire<T>*>(data), static_cast<std::size_t>(size)};
}
template <class T>
std::span<Wire<T>> wire(const kernels::Vector<T>& x) {
  return wire(x.data(), static_cast<Index>(x.extent(0)));
}

// A complete sum in the compute type: rounded once where that is narrower, the tensor itself where it is not.
template <class T>
Tensor<T> rounded(Pool& pool, const Tensor<kernels::Acc<T>>& sum) {
  if constexpr (kernels::kStoredAsComputed<T>) {
    return sum;
  } else {
    Tensor<T> x(pool, MemoryTag::activations, sum.rows(), sum.cols());
    kernels::round_to(Space(), sum.vector(), x.vector());
    return x;
  }
}

}  // namespace fourfold
