#include "train/saved_tensors.hpp"

#include <set>
#include <string>
#include <utility>

namespace fourfold {

namespace {

template <class T>
constexpr checkpoint::ElementType kElement = checkpoint::ElementType::fp64;
template <>
constexpr checkpoint::ElementType kElement<float> = checkpoint::ElementType::fp32;
template <>
constexpr checkpoint::ElementType kElement<kernels::bf16> = checkpoint::ElementType::bf16;

}  // namespace

template <class T>
SavedTensors<T>::SavedTensors(ParamStore<T>& params, const Optimizer<T>* optimizer, const GridComms& comms)
    : params_(params) {
  std::set<std::string> here;
  for (const Param<T>& param : params.params()) here.insert(param.spec.name);
  for (ModelTensor& tensor : agree_on_tensors(comms.world(), params)) {
    if (!here.contains(tensor.name)) missing_.push_back(std::move(tensor));
  }
  for (const Param<T>& param : params.params()) {
    const ParamSpec& spec = param.spec;
    const Communicator* copies = spec.sum_over.empty() ? nullptr : &comms.group(spec.sum_over);
    add("/params/" + spec.name, spec.shard, spec.owner, copies, param.value);
  }
  add_missing("/params/", kElement<T>);
  if (optimizer == nullptr) return;
  for (const std::string& kind : optimizer->kinds()) {
    add_missing("/optimizer/" + kind + "/", kElement<kernels::Acc<T>>);
  }
  for (const auto& state : optimizer->states()) {
    const ParamSpec& spec = state.param->spec;
    add("/optimizer/" + state.kind + "/" + spec.name, state.shard, spec.owner, state.copies, state.values);
  }
}

template <class T>
void SavedTensors<T>::add_gradients(const UpdatePlan& plan) {
  for (const Param<T>& param : params_.params()) {
    const GroupPlan& group = plan.group(static_cast<std::size_t>(param.group));
    const Range range = range_in_part(param, group);
    add("/gradients/" + param.spec.name, part_of_shard(param.spec.shard, range), param.spec.owner, group.copies,
        kernels::Vector<kernels::Acc<T>>(param.grad.data() + range.begin, range.size()));
  }
  add_missing("/gradients/", kElement<kernels::Acc<T>>);
}

template <class T>
void SavedTensors<T>::add_missing(const std::string& kind, checkpoint::ElementType type) {
  for (const ModelTensor& tensor : missing_) {
    const Box none(tensor.shape.size());
    shards_.push_back({kind + tensor.name, type, Shard{tensor.shape, none, {0, 0}}, nullptr, {0, 0}});
  }
}

template <class T>
template <class E>
void SavedTensors<T>::add(const std::string& name, const Shard& shard, bool owner, const Communicator* copies,
                          kernels::Vector<E> values) {
  Range owned;
  if (owner) owned = copies == nullptr ? Range{0, shard.size()} : part(shard.size(), copies->size(), copies->rank());
  const auto host = Kokkos::create_mirror_view(values);
  copies_.push_back(
      {[host, values] { Kokkos::deep_copy(host, values); }, [host, values] { Kokkos::deep_copy(values, host); }});
  shards_.push_back({name, kElement<E>, shard, host.data(), owned});
}

template <class T>
void SavedTensors<T>::to_host() const {
  params_.finish_gathers();
  for (const Copies& tensor : copies_) tensor.to_host();
}

template <class T>
void SavedTensors<T>::to_device() const {
  for (const Copies& tensor : copies_) tensor.to_device();
}

template class SavedTensors<float>;
template class SavedTensors<double>;
template class SavedTensors<kernels::bf16>;

}  // namespace fourfold
