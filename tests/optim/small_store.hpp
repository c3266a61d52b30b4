// A parameter store without a model: whole tensors, values and gradients by hand.
#pragma once

#include <Kokkos_Core.hpp>
#include <string>
#include <vector>

#include "tensor/param.hpp"

namespace fourfold::test {

inline ParamSpec whole_spec(std::string name, std::vector<std::int64_t> shape, AxisSet sum_over, bool owner = true) {
  return {std::move(name), whole_shard(shape), sum_over, owner,
          [](std::int64_t i) { return 0.5 - 0.125 * static_cast<double>(i % 9); }};
}

template <class T>
void set_values(kernels::Vector<T> view, const std::vector<double>& values) {
  auto host = Kokkos::create_mirror_view(view);
  for (std::size_t i = 0; i < values.size(); ++i) host(i) = static_cast<T>(values[i]);
  Kokkos::deep_copy(view, host);
}

template <class T>
std::vector<T> get_values(kernels::Vector<T> view) {
  auto host = Kokkos::create_mirror_view(view);
  Kokkos::deep_copy(host, view);
  return std::vector<T>(host.data(), host.data() + host.extent(0));
}

}  // namespace fourfold::test
