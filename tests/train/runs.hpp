// Training runs of small models on any number of the launch's ranks, and what they leave behind.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/grid_comms.hpp"
#include "data/loader.hpp"
#include "deck/deck.hpp"
#include "grid/partition.hpp"
#include "shared_pool.hpp"
#include "train/saved_tensors.hpp"
#include "train/trainer.hpp"

namespace fourfold::test {

// A deck from YAML for a number of ranks. Errors: Error with the reader's messages.
Deck deck_of(const std::string& yaml, const std::vector<std::string>& overrides, int ranks);

std::string small_transformer();          // fp64, AdamW, clipping, cosine, dropout, KV heads; global batch 48
std::string dyadic_mlp();                 // three matrices, clipped momentum, snapped; global batch 48
std::string dyadic_embedding(bool tied);  // embedding and head, the same

using Tensors = std::map<std::string, std::vector<double>>;  // by name; what this rank holds

struct StepRecord {
  double loss = 0, grad_norm = 0;
  Tensors gradients, weights;  // reduced gradients before clipping; weights after the update (optimizer.gather lazy:
                               // after the last step alone)
};

using Shards = std::map<std::string, Shard>;

// What a rank's named shards (of doubles) hold.
Tensors values_of(const std::vector<checkpoint::NamedShard>& shards);

// The elements of whole logical tensors that a rank with these shards holds.
Tensors held_part(const Tensors& whole, const Shards& shards);

// Steps 1 to `steps` in the deck's precision. Collective over `world`.
// `shards`, where given, gets what this rank holds.
std::vector<StepRecord> run_steps(const Deck& deck, const Communicator& world, int steps, Shards* shards = nullptr);

// `body` on the first `ranks` ranks of the launch, with their communicator; all ranks leave together.
void on_ranks(int ranks, const std::function<void(const Communicator&)>& body);

// The dense grid of a deck over a communicator of its size, with all groups that training asks for.
GridComms grid_comms(const Deck& deck, const Communicator& world);

// A trainer and all that it stands on. Collective over `world`. `data`: the deck that the loader is given instead.
template <class T = double>
struct Training {
  Training(const Deck& d, const Communicator& world, const Deck* data = nullptr)
      : deck(d), comms(grid_comms(deck, world)), loader(data != nullptr ? *data : deck) {}

  ParamStore<T>& params() { return trainer.model().params(); }
  // Of parameters and moments, up to date.
  const std::vector<checkpoint::NamedShard>& shards() const {
    saved.to_host();
    return saved.shards();
  }

  const Deck deck;
  const GridComms comms;
  const Loader loader;
  MemoryLedger memory;
  Pool pool{memory, shared_blocks(deck.comm.shared_memory)};
  Trace trace;
  Trainer<T> trainer{deck, comms, loader, pool, trace};
  SavedTensors<T> saved{trainer.model(), &trainer.optimizer(), comms};
};

// The largest |a - b| over all tensors, divided by the largest magnitude in `a`: the tolerance of
// "agrees to 1e-11". Fails the test where names or sizes differ.
double difference(const Tensors& a, const Tensors& b);

}  // namespace fourfold::test
