// Expert migration (model.moe.migration): which experts of which layers change places, by their loads since the last
// look (Piper's rule: balance_by_swaps()). The places and loads of all layers of the model, equal on all ranks.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "deck/deck.hpp"
#include "grid/process_grid.hpp"
#include "layers/moe/places.hpp"
#include "train/moe_report.hpp"
#include "train/pipeline.hpp"

namespace fourfold {

struct LayerMigration {
  std::int64_t layer = 0;                      // number of the block
  std::vector<std::pair<Index, Index>> swaps;  // of experts, one after the other; none: it stays as it is
  double before = 0, after = 0;                // the largest load of a rank over the mean
};

struct MigrationReport {
  std::int64_t step = 0;
  std::vector<LayerMigration> layers;
  std::int64_t bytes = 0;  // that this rank sent
  double seconds = 0;
  bool any() const;  // something moved
};

class ExpertPlacement {
 public:
  // `deck` has a model.moe; its grid is settled.
  ExpertPlacement(const Deck& deck, const PipelinePlan& pipeline);

  void count(const MoeReport& report);  // the loads of a step
  // Of every layer the swaps that its loads ask for, which its places follow here; loads begin anew.
  std::vector<LayerMigration> look();

  const ExpertPlaces& places(std::int64_t layer) const;
  // For a checkpoint, a line a layer: "layer 1 places 3 0 1 2 loads 12 0 7 3", both by expert.
  std::string text() const;
  // Back to what a text says; the swaps that bring the layers there. Any number of ranks may have written it. An empty
  // text: everything stays. Errors (all ranks, storage): it is not of this model.
  std::vector<LayerMigration> restore(const std::string& text);

 private:
  struct Layer {
    std::int64_t layer = 0;
    ExpertPlaces places;
    std::vector<double> loads;  // by expert, whole numbers
  };
  MigrationDeck deck_;
  std::vector<Layer> layers_;
};

}  // namespace fourfold
