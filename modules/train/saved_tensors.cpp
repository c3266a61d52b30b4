#include "train/saved_tensors.hpp"

#include <string>
#include <type_traits>

namespace fourfold {

namespace {

template <class T>
constexpr checkpoint::ElementType kElement = checkpoint::ElementType::fp64;
template <>
constexpr checkpoint::ElementType kElement<float> = checkpoint::ElementType::fp32;

}  // namespace

template <class T>
SavedTensors<T>::SavedTensors(ParamStore<T>& params, const Optimizer<T>* optimizer, const GridComms& comms) {
  for (const Param<T>& param : params.params()) add("/params/" + param.spec.name, param.spec, param.value, comms);
  if (optimizer == nullptr) return;
  for (const auto& state : optimizer->states()) {
    add("/optimizer/" + state.kind + "/" + state.param->spec.name, state.param->spec, state.values, comms);
  }
}

template <class T>
void SavedTensors<T>::add_gradients(ParamStore<T>& params, const GridComms& comms) {
  static_assert(std::is_same_v<kernels::Acc<T>, T>, "gradients are kept in the type of the values");
  for (const Param<T>& param : params.params()) add("/gradients/" + param.spec.name, param.spec, param.grad, comms);
}

// The ranks whose gradients are summed hold the same values: each writes its part of them.
template <class T>
void SavedTensors<T>::add(const std::string& name, const ParamSpec& spec, kernels::Vector<T> values,
                          const GridComms& comms) {
  Range owned;
  if (spec.owner && spec.sum_over.empty()) {
    owned = {0, spec.shard.size()};
  } else if (spec.owner) {
    const Communicator& replicas = comms.group(spec.sum_over);
    owned = part(spec.shard.size(), replicas.size(), replicas.rank());
  }
  device_.push_back(values);
  host_.push_back(Kokkos::create_mirror_view(values));
  shards_.push_back({name, kElement<T>, spec.shard, host_.back().data(), owned});
}

template <class T>
void SavedTensors<T>::to_host() const {
  for (std::size_t i = 0; i < host_.size(); ++i) Kokkos::deep_copy(host_[i], device_[i]);
}

template <class T>
void SavedTensors<T>::to_device() const {
  for (std::size_t i = 0; i < host_.size(); ++i) Kokkos::deep_copy(device_[i], host_[i]);
}

template class SavedTensors<float>;
template class SavedTensors<double>;

}  // namespace fourfold
