#include "model/moe_options.hpp"

#include "model/names.hpp"

namespace fourfold {

namespace {

DispatcherType dispatcher_type(DispatcherKind kind) {
  switch (kind) {
    case DispatcherKind::allgather:
      return DispatcherType::allgather;
    case DispatcherKind::hierarchical:
      return DispatcherType::hierarchical;
    case DispatcherKind::alltoall:
      break;
  }
  return DispatcherType::alltoall;
}

BalanceScope balance_scope(BalanceScopeKind kind) {
  switch (kind) {
    case BalanceScopeKind::micro_batch:
      return BalanceScope::micro_batch;
    case BalanceScopeKind::global_batch:
      return BalanceScope::global_batch;
    case BalanceScopeKind::sequence:
      break;
  }
  return BalanceScope::sequence;
}

ForcedRouting forced_routing(ForcedRoutingKind kind) {
  switch (kind) {
    case ForcedRoutingKind::uniform:
      return ForcedRouting::uniform;
    case ForcedRoutingKind::zipf:
      return ForcedRouting::zipf;
    case ForcedRoutingKind::none:
      break;
  }
  return ForcedRouting::none;
}

}  // namespace

MoeOptions moe_options(const ModelDeck& model) {
  const MoeDeck& moe = *model.moe;
  const bool stack = model.kind == ModelKind::residual;
  MoeOptions options;
  options.width = model.hidden;
  options.experts = moe.experts;
  options.hidden = moe.hidden;
  options.top_k = moe.top_k;
  options.activation = stack ? activation_type(model.activation) : activation_type(model.ffn.kind);
  options.bias = stack ? model.mlp_bias : model.bias == BiasKind::all;
  options.dispatcher = dispatcher_type(moe.dispatcher);
  options.fused_weight = moe.permute == PermuteKind::fused_weight;
  options.score = moe.score == ScoreKind::softmax ? RouterScore::softmax : RouterScore::sigmoid;
  options.renormalize = moe.renormalize;
  options.jitter = moe.jitter;
  options.groups = moe.groups;
  options.top_groups = moe.top_groups;
  options.capacity.factor = moe.capacity.factor;
  options.capacity.scope =
      moe.capacity.scope == CapacityScopeKind::sequence ? CapacityScope::sequence : CapacityScope::micro_batch;
  options.capacity.priority = moe.capacity.priority == CapacityPriorityKind::position ? CapacityPriority::position
                                                                                      : CapacityPriority::probability;
  options.balance.aux = moe.balance.aux;
  options.balance.scope = balance_scope(moe.balance.scope);
  options.balance.z = moe.balance.z;
  options.balance.bias_rate = moe.balance.bias_rate;
  options.forced.kind = forced_routing(moe.forced.routing);
  options.forced.exponent = moe.forced.exponent;
  options.shared_hidden = moe.shared_hidden;
  options.shared_gate = moe.shared_gate;
  return options;
}

}  // namespace fourfold
