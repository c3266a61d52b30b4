// An owning array where kernels run, filled from and read back to a std::vector.
#pragma once

#include <Kokkos_Core.hpp>
#include <random>
#include <vector>

#include "kernels/types.hpp"

namespace fourfold::test {

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values) : view_("test array", values.size()) {
    const HostView host(const_cast<T*>(values.data()), values.size());
    Kokkos::deep_copy(view_, host);
  }
  explicit DeviceArray(kernels::Index size, T value = T(0))
      : DeviceArray(std::vector<T>(static_cast<std::size_t>(size), value)) {}

  T* data() const { return view_.data(); }
  kernels::Index size() const { return static_cast<kernels::Index>(view_.size()); }
  kernels::Vector<T> vector() const { return kernels::Vector<T>(view_.data(), view_.size()); }
  kernels::Vector<const T> const_vector() const { return kernels::Vector<const T>(view_.data(), view_.size()); }
  kernels::Matrix<T> matrix(kernels::Index rows, kernels::Index cols) const {
    return kernels::Matrix<T>(view_.data(), static_cast<std::size_t>(rows), static_cast<std::size_t>(cols));
  }
  kernels::Matrix<const T> const_matrix(kernels::Index rows, kernels::Index cols) const {
    return kernels::Matrix<const T>(view_.data(), static_cast<std::size_t>(rows), static_cast<std::size_t>(cols));
  }
  std::vector<T> host() const {
    std::vector<T> values(view_.size());
    const HostView host(values.data(), values.size());
    Kokkos::deep_copy(host, view_);
    return values;
  }

 private:
  using HostView = Kokkos::View<T*, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  Kokkos::View<T*, kernels::Space::memory_space> view_;
};

// Normal numbers in fp64; cast them for fp32.
inline std::vector<double> normal_numbers(kernels::Index size, unsigned seed, double deviation = 1.0) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> draw(0.0, deviation);
  std::vector<double> values(static_cast<std::size_t>(size));
  for (double& value : values) value = draw(engine);
  return values;
}

template <class T>
std::vector<T> cast_to(const std::vector<double>& values) {
  return std::vector<T>(values.begin(), values.end());
}

}  // namespace fourfold::test
