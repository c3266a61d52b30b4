// The keys of model.moe, which exist where the deck has the block.
#include <utility>

#include "deck/key_line.hpp"

namespace fourfold {
namespace {

constexpr double kMostExperts = 65536;
constexpr double kMostLayers = 10000;
constexpr double kMostSize = 1 << 22;

// The block exists as soon as one of its keys is given.
MoeDeck& moe_of(Deck& deck) {
  if (!deck.model.moe) deck.model.moe.emplace();
  return *deck.model.moe;
}
const MoeDeck& moe_of(const Deck& deck) {
  return *deck.model.moe;
}
bool has_moe(const Deck& deck) {
  return deck.model.moe.has_value();
}

}  // namespace

KeyTable moe_keys() {
  KeyTable table;
  const auto add = [&table](Line line) { table.push_back(std::move(line.only_if(has_moe)).key()); };

  add(integer("model.moe.every", between(1, kMostLayers),
              "every n-th feed-forward block is a mixture of experts: 2 makes 1, 3, 5 ... from 0",
              [](auto& d) { return &moe_of(d).every; })
          .derived("1", "1"));
  add(integer("model.moe.experts", between(1, kMostExperts), "experts of a layer", [](auto& d) {
        return &moe_of(d).experts;
      }).needed(Need::moe, "8"));
  add(integer("model.moe.top_k", between(1, kMostExperts), "experts that a token goes to", [](auto& d) {
        return &moe_of(d).top_k;
      }).derived("2", "2"));
  add(integer("model.moe.hidden", between(1, kMostSize), "width inside an expert", [](auto& d) {
        return &moe_of(d).hidden;
      }).derived("model.ffn.hidden", "1024"));
  add(choice("model.moe.score", "of all experts, by which a token's are chosen and weighted; ties to the lower id",
             {"softmax", "sigmoid"}, [](auto& d) { return &moe_of(d).score; })
          .derived("softmax", "softmax"));
  add(boolean("model.moe.renormalize", "the chosen experts' weights sum up to 1", [](auto& d) {
        return &moe_of(d).renormalize;
      }).derived("true", "true"));
  add(number("model.moe.jitter", fraction(),
             "in training the router's inputs are multiplied by random numbers from 1 - jitter to 1 + jitter",
             [](auto& d) { return &moe_of(d).jitter; })
          .derived("0.0", "0.0"));
  add(integer("model.moe.groups", between(1, kMostExperts), "equal groups of experts; divides experts", [](auto& d) {
        return &moe_of(d).groups;
      }).derived("1", "1"));
  add(integer("model.moe.top_groups", between(1, kMostExperts),
              "groups that a token's experts come from: those of the best score, with sigmoid of the best two together",
              [](auto& d) { return &moe_of(d).top_groups; })
          .derived("1", "1"));
  add(integer("model.moe.shared_hidden", between(0, kMostSize), "width inside the shared expert of all tokens; 0: none",
              [](auto& d) { return &moe_of(d).shared_hidden; })
          .derived("0", "0"));
  add(boolean("model.moe.shared_gate", "the shared expert's output is multiplied by a sigmoid of the token",
              [](auto& d) { return &moe_of(d).shared_gate; })
          .derived("false", "false"));
  add(number("model.moe.capacity.factor", at_least(0),
             "an expert takes factor x top_k x tokens / experts pairs, rounded up, and drops the rest; 0: dropless",
             [](auto& d) { return &moe_of(d).capacity.factor; })
          .derived("0.0", "0.0"));
  add(choice("model.moe.capacity.scope", "tokens that it counts: of each sequence, or of a micro-batch of all ranks",
             {"sequence", "micro_batch"}, [](auto& d) { return &moe_of(d).capacity.scope; })
          .derived("sequence", "sequence"));
  add(choice("model.moe.capacity.priority", "who is taken first: by place in the batch, or by the score",
             {"position", "probability"}, [](auto& d) { return &moe_of(d).capacity.priority; })
          .derived("position", "position"));
  add(choice("model.moe.dispatcher", "how tokens reach experts; hierarchical: inside nodes, then between them",
             {"allgather", "alltoall", "hierarchical"}, [](auto& d) { return &moe_of(d).dispatcher; })
          .derived("alltoall", "alltoall"));
  add(choice("model.moe.permute",
             "fused_weight: weights are applied before an expert's second product, which has no bias then",
             {"plain", "fused_weight"}, [](auto& d) { return &moe_of(d).permute; })
          .derived("plain", "plain"));
  add(number("model.moe.balance.aux", at_least(0), "factor of the auxiliary loss, experts x sum of f P, of all layers",
             [](auto& d) { return &moe_of(d).balance.aux; })
          .derived("0.0", "0.0"));
  add(choice("model.moe.balance.scope",
             "of its means f and P: each sequence, each micro-batch of all ranks, the whole step",
             {"sequence", "micro_batch", "global_batch"}, [](auto& d) { return &moe_of(d).balance.scope; })
          .derived("sequence", "sequence"));
  add(number("model.moe.balance.z", at_least(0), "factor of the z-loss, the mean of (log-sum-exp of the logits)^2",
             [](auto& d) { return &moe_of(d).balance.z; })
          .derived("0.0", "0.0"));
  add(number("model.moe.balance.bias_rate", at_least(0),
             "after a step each expert's bias in the selection moves by this much towards the mean load; 0: no bias",
             [](auto& d) { return &moe_of(d).balance.bias_rate; })
          .derived("0.0", "0.0"));
  add(choice("model.moe.forced.routing", "for benchmarks: tokens go where this says, whatever the router does",
             {"none", "uniform", "zipf"}, [](auto& d) { return &moe_of(d).forced.routing; })
          .derived("none", "none"));
  add(number("model.moe.forced.exponent", at_least(0), "of zipf: expert e gets a share as 1 / (e + 1)^exponent",
             [](auto& d) { return &moe_of(d).forced.exponent; })
          .derived("1.0", "1.0"));
  add(integer("model.moe.migration.every", at_least(0),
              "steps from look to look at the loads, where experts of busy ranks change places with others; 0: never",
              [](auto& d) { return &moe_of(d).migration.every; })
          .derived("0", "0"));
  add(number("model.moe.migration.tau", at_least(1),
             "swaps go on while the largest load of a rank over the mean is above this, and some swap lowers it",
             [](auto& d) { return &moe_of(d).migration.tau; })
          .derived("1.1", "1.1"));
  add(integer("model.moe.migration.budget", between(1, kMostExperts), "swaps of a layer at a look, at most",
              [](auto& d) { return &moe_of(d).migration.budget; })
          .derived("16", "16"));
  return table;
}

}  // namespace fourfold
