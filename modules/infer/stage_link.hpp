// What a stage hands on to the next in generation. A rank's messages; who calls both sides of a pass in one order needs
// no more.
#pragma once

#include <deque>
#include <vector>

#include "comm/collectives.hpp"
#include "comm/grid_comms.hpp"
#include "deck/deck.hpp"
#include "tensor/crossing.hpp"

namespace fourfold {

template <class T>
class StageLink {
 public:
  // Keeps references.
  StageLink(const Deck& deck, const GridComms& comms, Pool& pool) : deck_(deck), comms_(comms), pool_(pool) {}

  // ranges: the tokens of each sequence in this pass (model/boundary.hpp). x: what this rank holds of them. Under way
  // until finish().
  void send(const std::vector<Range>& ranges, const Tensor<T>& x);
  Tensor<T> receive(const std::vector<Range>& ranges) const;
  void finish();

 private:
  std::vector<CrossingPiece> pieces(const std::vector<Range>& ranges, int other, bool sends) const;

  const Deck& deck_;
  const GridComms& comms_;
  Pool& pool_;
  std::deque<Tensor<T>> buffers_;  // of the messages under way
  std::vector<Pending> messages_;
};

}  // namespace fourfold
