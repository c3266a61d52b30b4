#include "train/saved_tensors.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "layers/moe/moe.hpp"
#include "train/moe_report.hpp"

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
SavedTensors<T>::SavedTensors(Model<T>& model, const Optimizer<T>* optimizer, const GridComms& comms) : model_(model) {
  const ParamStore<T>& params = model.params();
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
  add_selection_biases(comms.here());
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
  for (const Param<T>& param : model_.params().params()) {
    const GroupPlan& group = plan.group(static_cast<std::size_t>(param.group));
    const Range range = range_in_part(param, group);
    add("/gradients/" + param.spec.name, part_of_shard(param.spec.shard, range), param.spec.owner, group.copies,
        kernels::Vector<kernels::Acc<T>>(param.grad.data() + range.begin, range.size()));
  }
  add_missing("/gradients/", kElement<kernels::Acc<T>>);
}

// Equal on all ranks of a stage: the first of its dense grid writes them.
template <class T>
void SavedTensors<T>::add_selection_biases(const Coordinates& here) {
  const ModelDeck& deck = model_.deck().model;
  if (!deck.moe || deck.moe->balance.bias_rate == 0) return;
  const auto own = model_.expert_layers();
  for (const std::int64_t layer : layers_with_experts(deck)) {
    const std::string name = "/params/layers." + std::to_string(layer) + ".moe.router.selection_bias";
    const std::vector<std::int64_t> shape{deck.moe->experts};
    const auto held = std::find_if(own.begin(), own.end(), [&](const auto& entry) { return entry.first == layer; });
    if (held == own.end()) {
      shards_.push_back({name, checkpoint::ElementType::fp64, Shard{shape, Box(1), {0, 0}}, nullptr, {0, 0}});
      continue;
    }
    std::vector<double>& host = biases_.emplace_back(held->second->selection_bias());
    copies_.push_back({[&host, experts = held->second] {
                         const std::vector<double>& bias = experts->selection_bias();
                         std::copy(bias.begin(), bias.end(), host.begin());
                       },
                       [&host, experts = held->second] { experts->set_selection_bias(host); }});
    const bool first = here.data == 0 && here.depth == 0 && here.row == 0 && here.col == 0;
    const Shard shard = whole_shard(shape);
    shards_.push_back(
        {name, checkpoint::ElementType::fp64, shard, host.data(), first ? Range{0, shard.size()} : Range{0, 0}});
  }
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
  model_.params().finish_gathers();
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
