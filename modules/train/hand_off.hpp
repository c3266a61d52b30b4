// What goes from chunk to chunk where the two are on different stages: a repartition between the grids of the stages,
// forwards of activations, backwards of their gradients. A rank's messages; the interpreter sends and awaits them.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "comm/grid_comms.hpp"
#include "deck/deck.hpp"
#include "schedule/schedule.hpp"
#include "tensor/crossing.hpp"

namespace fourfold {

// The holdings of both sides of a transfer, by place in each stage's ranks.
struct TransferSides {
  int from = 0, to = 0;  // stages
  std::vector<Holding> senders, receivers;
};
// `transfer`: either end of it. `cuts`: the units of each chunk. `samples`: sequences of the micro-batch, over all
// coordinates.
TransferSides sides_of(const Deck& deck, const ProcessGrid& grid, const std::vector<Range>& cuts,
                       const Schedule& schedule, const StageOperation& transfer, std::int64_t samples);

class HandOff {
 public:
  // Keeps references to all but the cuts.
  HandOff(const Deck& deck, const GridComms& comms, std::vector<Range> cuts);

  // This rank's side of a transfer; peers are ranks of group().
  struct Side {
    std::vector<CrossingPiece> pieces;
    Index rows = 0, cols = 0;  // of what this rank holds
  };
  // `transfer`: of this rank's list. Reckoned once for each boundary, way and number of samples.
  const Side& side(const Schedule& schedule, const StageOperation& transfer, std::int64_t samples);
  const Communicator& group() const { return comms_.group(AxisSet{Axis::stage}); }

 private:
  const Deck& deck_;
  const GridComms& comms_;
  std::vector<Range> cuts_;
  std::map<std::tuple<OperationKind, int, std::int64_t>, Side> known_;
};

}  // namespace fourfold
