#include "train/saved_tensors.hpp"

#include <algorithm>
#include <map>
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
SavedTensors<T>::SavedTensors(Model<T>& model, const Optimizer<T>* optimizer, const GridComms& comms)
    : model_(model), optimizer_(optimizer), comms_(comms) {
  const ParamStore<T>& params = model.params();
  std::set<std::string> here;
  for (const Param<T>& param : params.params()) here.insert(param.spec.name);
  for (ModelTensor& tensor : agree_on_tensors(comms.world(), params)) {
    if (!here.contains(tensor.name)) missing_.push_back(std::move(tensor));
  }
  list();
}

template <class T>
void SavedTensors<T>::follow_places() {
  shards_.clear();
  copies_.clear();
  biases_.clear();
  list();
  if (gradients_ != nullptr) list_gradients(*gradients_);
}

template <class T>
void SavedTensors<T>::list() {
  const ParamStore<T>& params = model_.params();
  for (const Param<T>& param : params.params()) {
    const ParamSpec& spec = param.spec;
    const Communicator* copies = spec.sum_over.empty() ? nullptr : &comms_.group(spec.sum_over);
    const Range whole{0, params.groups()[static_cast<std::size_t>(param.group)].size};
    add("/params/" + spec.name, spec.shard, param, whole, param.group_offset, copies, param.value);
  }
  add_missing("/params/", kElement<T>);
  add_selection_biases(comms_.here());
  if (optimizer_ != nullptr) add_states();
}

template <class T>
void SavedTensors<T>::add_states() {
  for (const std::string& kind : optimizer_->kinds()) {
    add_missing("/optimizer/" + kind + "/", kElement<kernels::Acc<T>>);
  }
  const auto place_of = [](const typename Optimizer<T>::State& state) {
    return state.param->group_offset + state.shard.flat.begin - state.param->spec.shard.flat.begin;
  };
  // What this rank updates of each group, without padding.
  std::map<Index, Range> updated;
  for (const auto& state : optimizer_->states()) {
    const Range range{place_of(state), place_of(state) + state.shard.size()};
    if (range.empty()) continue;
    Range& all = updated.emplace(state.param->group, range).first->second;
    all = {std::min(all.begin, range.begin), std::max(all.end, range.end)};
  }
  for (const auto& state : optimizer_->states()) {
    const std::string name = "/optimizer/" + state.kind + "/" + state.param->spec.name;
    add(name, state.shard, *state.param, updated[state.param->group], place_of(state), state.copies, state.values);
  }
}

template <class T>
void SavedTensors<T>::add_gradients(const UpdatePlan& plan) {
  gradients_ = &plan;
  list_gradients(plan);
}

template <class T>
void SavedTensors<T>::list_gradients(const UpdatePlan& plan) {
  for (const Param<T>& param : model_.params().params()) {
    const auto index = static_cast<std::size_t>(param.group);
    const GroupPlan& group = plan.group(index);
    const Range range = range_in_part(param, group);
    const Range flat = intersect(group.mine, Range{0, model_.params().groups()[index].size});
    add("/gradients/" + param.spec.name, part_of_shard(param.spec.shard, range), param, flat,
        param.group_offset + range.begin, group.copies,
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
void SavedTensors<T>::add(const std::string& name, const Shard& shard, const Param<T>& param, Range flat, Index place,
                          const Communicator* copies, kernels::Vector<E> values) {
  checkpoint::NamedShard saved{name, kElement<E>, shard, nullptr, {}};
  if (param.spec.owner) {
    const Range part_of_flat =
        copies == nullptr ? Range{0, flat.size()} : part(flat.size(), copies->size(), copies->rank());
    const Range mine = intersect(Range{flat.begin + part_of_flat.begin, flat.begin + part_of_flat.end},
                                 Range{place, place + shard.size()});
    if (!mine.empty()) saved.owned = {mine.begin - place, mine.end - place};
  }
  if constexpr (Kokkos::SpaceAccessibility<Kokkos::HostSpace, kernels::Space::memory_space>::accessible) {
    saved.data = values.data();
  } else {
    using Host = Kokkos::View<E*, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
    const auto here = [values](Range local) { return Kokkos::subview(values, std::pair(local.begin, local.end)); };
    const auto there = [](Range local, void* data) {
      return Host(static_cast<E*>(data), static_cast<std::size_t>(local.size()));
    };
    saved.fetch = [=](Range local, void* to) { Kokkos::deep_copy(there(local, to), here(local)); };
    saved.store = [=](Range local, const void* from) {
      Kokkos::deep_copy(here(local), there(local, const_cast<void*>(from)));
    };
  }
  shards_.push_back(std::move(saved));
}

template <class T>
void SavedTensors<T>::to_host() const {
  model_.params().finish_gathers();
  for (const Copies& other : copies_) other.to_host();
  Kokkos::fence();
}

template <class T>
void SavedTensors<T>::to_device() const {
  for (const Copies& other : copies_) other.to_device();
  Kokkos::fence();
}

template class SavedTensors<float>;
template class SavedTensors<double>;
template class SavedTensors<kernels::bf16>;

}  // namespace fourfold
