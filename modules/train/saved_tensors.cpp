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
SavedTensors<T>::SavedTensors(ParamStore<T>& params, const Optimizer<T>* optimizer, const GridComms& comms)
    : params_(params) {
  for (const Param<T>& param : params.params()) {
    const ParamSpec& spec = param.spec;
    const Communicator* copies = spec.sum_over.empty() ? nullptr : &comms.group(spec.sum_over);
    add("/params/" + spec.name, spec.shard, spec.owner, copies, param.value);
  }
  if (optimizer == nullptr) return;
  for (const auto& state : optimizer->states()) {
    const ParamSpec& spec = state.param->spec;
    add("/optimizer/" + state.kind + "/" + spec.name, state.shard, spec.owner, state.copies, state.values);
  }
}

template <class T>
void SavedTensors<T>::add_gradients(const UpdatePlan& plan) {
  static_assert(std::is_same_v<kernels::Acc<T>, T>, "gradients are kept in the type of the values");
  for (const Param<T>& param : params_.params()) {
    const GroupPlan& group = plan.group(static_cast<std::size_t>(param.group));
    const Range range = range_in_part(param, group);
    add("/gradients/" + param.spec.name, part_of_shard(param.spec.shard, range), param.spec.owner, group.copies,
        kernels::Vector<T>(param.grad.data() + range.begin, range.size()));
  }
}

template <class T>
void SavedTensors<T>::add(const std::string& name, const Shard& shard, bool owner, const Communicator* copies,
                          kernels::Vector<T> values) {
  Range owned;
  if (owner) owned = copies == nullptr ? Range{0, shard.size()} : part(shard.size(), copies->size(), copies->rank());
  device_.push_back(values);
  host_.push_back(Kokkos::create_mirror_view(values));
  shards_.push_back({name, kElement<T>, shard, host_.back().data(), owned});
}

template <class T>
void SavedTensors<T>::to_host() const {
  params_.finish_gathers();
  for (std::size_t i = 0; i < host_.size(); ++i) Kokkos::deep_copy(host_[i], device_[i]);
}

template <class T>
void SavedTensors<T>::to_device() const {
  for (std::size_t i = 0; i < host_.size(); ++i) Kokkos::deep_copy(device_[i], host_[i]);
}

template class SavedTensors<float>;
template class SavedTensors<double>;

}  // namespace fourfold
