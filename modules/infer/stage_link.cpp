#include "infer/stage_link.hpp"

#include <algorithm>

#include "model/boundary.hpp"
#include "tensor/number.hpp"

namespace fourfold {

namespace {

constexpr int kTag = 1;  // messages between two ranks keep their order

}  // namespace

// This rank's side of what goes to, or comes from, stage `other`; peers are ranks of the stage group.
template <class T>
std::vector<CrossingPiece> StageLink<T>::pieces(const std::vector<Range>& ranges, int other, bool sends) const {
  const ProcessGrid& grid = comms_.grid();
  const Coordinates& here = comms_.here();
  if (grid.equal_stages()) {  // place by place
    CrossingPiece piece;
    piece.peer = other;
    piece.elements = generated_layout(deck_, grid, here, ranges).size();
    piece.whole = true;
    if (piece.elements == 0) return {};
    return {piece};
  }
  const auto holdings = [&](int stage) {
    std::vector<Holding> list;
    for (const int rank : grid.ranks_of_stage(stage)) {
      list.push_back(holding_of(generated_layout(deck_, grid, grid.coordinates(rank), ranges)));
    }
    return list;
  };
  const std::vector<int> own = grid.ranks_of_stage(here.stage), others = grid.ranks_of_stage(other);
  const auto me = static_cast<int>(std::find(own.begin(), own.end(), comms_.world().rank()) - own.begin());
  std::vector<CrossingPiece> list = sends ? pieces_to_send(holdings(here.stage), holdings(other), me)
                                          : pieces_to_receive(holdings(other), holdings(here.stage), me);
  for (CrossingPiece& piece : list) piece.peer = others[static_cast<std::size_t>(piece.peer)];
  return list;
}

template <class T>
void StageLink<T>::send(const std::vector<Range>& ranges, const Tensor<T>& x) {
  for (const CrossingPiece& piece : pieces(ranges, comms_.here().stage + 1, true)) {
    Tensor<T>& buffer = buffers_.emplace_back(x);
    if (!piece.whole) {
      buffer = Tensor<T>(pool_, MemoryTag::buffers, 1, piece.elements);
      pack<T>(piece, x.vector(), buffer.vector());
    }
    Space().fence();
    messages_.push_back(start_send<Wire<T>>(comms_.group(AxisSet{Axis::stage}), wire(buffer.data(), buffer.size()),
                                            piece.peer, kTag, Phase::forward));
  }
}

template <class T>
Tensor<T> StageLink<T>::receive(const std::vector<Range>& ranges) const {
  const TokenLayout layout = generated_layout(deck_, comms_.grid(), comms_.here(), ranges);
  const Tensor<T> x(pool_, MemoryTag::activations, layout.rows(), layout.width);
  for (const CrossingPiece& piece : pieces(ranges, comms_.here().stage - 1, false)) {
    const Tensor<T> buffer = piece.whole ? x : Tensor<T>(pool_, MemoryTag::buffers, 1, piece.elements);
    start_receive<Wire<T>>(comms_.group(AxisSet{Axis::stage}), wire(buffer.data(), buffer.size()), piece.peer, kTag,
                           Phase::forward)
        .wait();
    if (!piece.whole) unpack<T>(piece, buffer.vector(), x.vector());
  }
  return x;
}

template <class T>
void StageLink<T>::finish() {
  for (Pending& message : messages_) message.wait();
  messages_.clear();
  buffers_.clear();
}

template class StageLink<float>;
template class StageLink<double>;
template class StageLink<kernels::bf16>;

}  // namespace fourfold
