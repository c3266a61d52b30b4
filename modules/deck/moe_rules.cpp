// Rules about mixtures of experts: sizes, numbers, and what the ranks of their grid must fit.
#include <string>

#include "deck/derive.hpp"
#include "deck/rules.hpp"

namespace fourfold {
namespace {

std::string up_to(std::int64_t most) {
  return most == 1 ? "legal: 1" : "legal: 1 to " + number(most) + "; nearest: " + number(most);
}

void every_rule(const Check& check) {
  const ModelDeck& model = check.deck.model;
  if (check.sound({"model.moe.every", "model.layers"}) && model.moe->every > model.layers) {
    check.add("model.moe.every", number(model.moe->every) + " leaves no mixture of experts in model.layers " +
                                     number(model.layers) + "; " + up_to(model.layers));
  }
}

// How many a token may choose: of the groups it may choose from.
void choice_rules(const Check& check) {
  const MoeDeck& moe = *check.deck.model.moe;
  if (!check.sound({"model.moe.experts", "model.moe.groups"})) return;
  if (moe.experts % moe.groups != 0) {
    check.add("model.moe.groups", number(moe.groups) + " must divide model.moe.experts " + number(moe.experts) + "; " +
                                      choose(divisors(moe.experts), moe.groups));
    return;
  }
  if (!check.sound({"model.moe.top_groups"})) return;
  if (moe.top_groups > moe.groups) {
    check.add("model.moe.top_groups", number(moe.top_groups) + " must be at most model.moe.groups " +
                                          number(moe.groups) + "; " + up_to(moe.groups));
    return;
  }
  const bool grouped = moe.groups > 1;
  const std::int64_t most = grouped ? moe.top_groups * (moe.experts / moe.groups) : moe.experts;
  if (check.sound({"model.moe.top_k"}) && moe.top_k > most) {
    const std::string of =
        grouped ? "the " + number(most) + " experts of model.moe.top_groups" : "model.moe.experts " + number(most);
    check.add("model.moe.top_k", number(moe.top_k) + " must be at most " + of + "; " + up_to(most));
  }
}

void bias_rules(const Check& check) {
  const ModelDeck& model = check.deck.model;
  if (check.sound({"model.moe.shared_gate", "model.moe.shared_hidden"}) && model.moe->shared_gate &&
      model.moe->shared_hidden == 0) {
    check.add("model.moe.shared_gate", "has no shared expert; give model.moe.shared_hidden, or take it away");
  }
  const bool stack = model.kind == ModelKind::residual;
  const char* key = stack ? "model.bias_terms" : "model.bias";
  if (!check.sound({"model.moe.permute", key}) || model.moe->permute == PermuteKind::plain) return;
  if (stack ? model.mlp_bias : model.bias == BiasKind::all) {
    check.add("model.moe.permute",
              std::string("fused_weight multiplies what enters an expert's second product, which has a bias by ") +
                  key + "; type plain, or " + key + (stack ? ": false" : ": none or qkv"));
  }
}

// Weights of exactly 1, and no gradient that is no multiple of a power of two.
void snap_rule(const Check& check) {
  const MoeDeck& moe = *check.deck.model.moe;
  if (!check.deck.numerics.snap || !check.sound({"numerics.snap"})) return;
  const auto refuse = [&](const char* path, bool inexact, const char* instead) {
    if (inexact && check.sound({path})) {
      check.add(path, std::string("gives numbers that numerics.snap cannot keep exact; type ") + instead);
    }
  };
  refuse("model.moe.top_k", moe.top_k > 1, "1");
  refuse("model.moe.renormalize", !moe.renormalize, "true");
  refuse("model.moe.shared_gate", moe.shared_gate, "false");
  refuse("model.moe.balance.aux", moe.balance.aux > 0, "0");
  refuse("model.moe.balance.z", moe.balance.z > 0, "0");
}

// Its means are known when all forwards of a step are done: no backward may come before.
void scope_rule(const Check& check) {
  const BalanceDeck& balance = check.deck.model.moe->balance;
  const std::string& schedule = check.deck.parallel.schedule;
  if (balance.scope != BalanceScopeKind::global_batch || balance.aux == 0) return;
  if (!check.sound({"model.moe.balance.scope", "model.moe.balance.aux", "parallel.schedule", "batch.global",
                    "batch.micro", "batch.micro_batches"})) {
    return;
  }
  if (check.deck.batch.micro_batches <= 1 || schedule == "gpipe" || schedule == "layered") return;
  check.add("model.moe.balance.scope",
            "global_batch needs every forward pass of a step before the first backward, and parallel.schedule " +
                schedule + " with batch.micro_batches " + number(check.deck.batch.micro_batches) +
                " has others; type parallel.schedule: gpipe or layered, batch.micro_batches: 1, or scope: sequence or "
                "micro_batch");
}

void moe_grid_rules(const Check& check) {
  const Deck& deck = check.deck;
  const std::optional<MoeShape>& grid = deck.parallel.moe;
  const std::int64_t experts = deck.model.moe->experts;
  if (!grid || !check.sound({"parallel.moe.expert", "parallel.moe.row", "parallel.moe.col"})) return;
  if (check.sound({"model.moe.experts"}) && grid->expert > experts) {
    check.add("parallel.moe.expert",
              number(grid->expert) + " must be at most model.moe.experts " + number(experts) + "; " + up_to(experts));
    return;
  }
  if (!check.sound({"parallel.moe.replica"}) || grid->replica == 0) return;
  const UpdateShard& shard = deck.optimizer.shard;
  const bool partial = shard.kind == UpdateShard::Kind::data_partial && check.sound({"optimizer.shard"});
  if (partial && deck.parallel.dense.data % shard.count == 0 && grid->replica % shard.count != 0) {
    check.add("optimizer.shard", "data_partial " + number(shard.count) + " must divide parallel.moe.replica " +
                                     number(grid->replica) + " too; " + choose(divisors(grid->replica), shard.count));
  }
  // The ranks of a replica group must be a mesh of their own.
  const std::int64_t stride = capped_product({grid->expert, grid->row, grid->col});
  const std::vector<std::int64_t>& dims = deck.comm.dims;
  if (deck.comm.gradient == GradientAlgorithm::torus2d && dims.size() == 2 && check.sound({"comm.gradient.dims"}) &&
      dims[0] % stride != 0 && stride % dims[0] != 0) {
    check.add("comm.gradient.dims", "X " + number(dims[0]) + " must divide parallel.moe.expert x row x col = " +
                                        number(stride) + " or be a multiple of it");
  }
}

}  // namespace

void moe_rules(const Check& check) {
  const ModelDeck& model = check.deck.model;
  if (!model.moe || !check.sound({"model.kind"})) return;
  if (model.kind != ModelKind::transformer && model.kind != ModelKind::residual) {
    check.add("model.moe", "needs model.kind transformer or residual; take it away or change the kind");
    return;
  }
  every_rule(check);
  choice_rules(check);
  bias_rules(check);
  snap_rule(check);
  scope_rule(check);
  moe_grid_rules(check);
}

}  // namespace fourfold
