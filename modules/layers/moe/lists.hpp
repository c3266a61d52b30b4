// Lists of whole numbers that the host makes and kernels read, or the other way round.
#pragma once

#include <vector>

#include "tensor/tensor.hpp"

namespace fourfold {

template <class E>
Tensor<E> on_device(Pool& pool, const std::vector<E>& list) {
  using Host = Kokkos::View<const E*, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  const Tensor<E> copy(pool, MemoryTag::activations, 1, static_cast<Index>(list.size()));
  Kokkos::deep_copy(copy.vector(), Host(list.data(), list.size()));
  return copy;
}

template <class E>
std::vector<E> on_host(const kernels::Vector<const E>& list) {
  using Host = Kokkos::View<E*, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  std::vector<E> copy(list.size());
  Kokkos::deep_copy(Host(copy.data(), copy.size()), list);
  return copy;
}

// Where parts of these sizes begin, and their end.
inline std::vector<Index> begins_of(const std::vector<Index>& sizes) {
  std::vector<Index> begins{0};
  for (const Index size : sizes) begins.push_back(begins.back() + size);
  return begins;
}

}  // namespace fourfold
