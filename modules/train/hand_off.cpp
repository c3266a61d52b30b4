#include "train/hand_off.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "model/boundary.hpp"

namespace fourfold {

namespace {

// The chunk before the boundary that a transfer crosses.
int boundary_of(const StageOperation& transfer) {
  const bool behind =
      transfer.kind == OperationKind::send_activation || transfer.kind == OperationKind::receive_gradient;
  return behind ? transfer.chunk : transfer.chunk - 1;
}

bool goes_forwards(const StageOperation& transfer) {
  return transfer.kind == OperationKind::send_activation || transfer.kind == OperationKind::receive_activation;
}

}  // namespace

TransferSides sides_of(const Deck& deck, const ProcessGrid& grid, const std::vector<Range>& cuts,
                       const Schedule& schedule, const StageOperation& transfer, std::int64_t samples) {
  const int boundary = boundary_of(transfer);
  const std::int64_t unit = cuts[static_cast<std::size_t>(boundary) + 1].begin;
  const auto holdings = [&](int stage) {
    std::vector<Holding> list;
    for (const int rank : grid.ranks_of_stage(stage)) {
      list.push_back(holding_of(boundary_layout(deck, grid, grid.coordinates(rank), unit, samples)));
    }
    return list;
  };
  TransferSides sides;
  sides.from = schedule.stage_of(boundary);
  sides.to = schedule.stage_of(boundary + 1);
  if (!goes_forwards(transfer)) std::swap(sides.from, sides.to);
  sides.senders = holdings(sides.from);
  sides.receivers = holdings(sides.to);
  return sides;
}

HandOff::HandOff(const Deck& deck, const GridComms& comms, std::vector<Range> cuts)
    : deck_(deck), comms_(comms), cuts_(std::move(cuts)) {}

const HandOff::Side& HandOff::side(const Schedule& schedule, const StageOperation& transfer, std::int64_t samples) {
  const auto [found, fresh] = known_.try_emplace({transfer.kind, transfer.chunk, samples});
  Side& side = found->second;
  if (!fresh) return side;
  const ProcessGrid& grid = comms_.grid();
  const int stage = comms_.here().stage;
  const std::int64_t unit = cuts_[static_cast<std::size_t>(boundary_of(transfer)) + 1].begin;
  const TokenLayout mine = boundary_layout(deck_, grid, comms_.here(), unit, samples);
  side.rows = mine.rows();
  side.cols = mine.width;

  const TransferSides sides = sides_of(deck_, grid, cuts_, schedule, transfer, samples);
  const std::vector<int> own = grid.ranks_of_stage(stage);
  const auto me = static_cast<int>(std::find(own.begin(), own.end(), comms_.world().rank()) - own.begin());
  const bool sends = is_send(transfer.kind);
  side.pieces = sends ? pieces_to_send(sides.senders, sides.receivers, me)
                      : pieces_to_receive(sides.senders, sides.receivers, me);
  // The group of equal stages has one rank of each, that of unequal ones all ranks of the job.
  const std::vector<int> others = grid.ranks_of_stage(sends ? sides.to : sides.from);
  for (CrossingPiece& piece : side.pieces) {
    FOURFOLD_ASSERT(!grid.equal_stages() || piece.peer == me, "equal grids hand on place by place");
    piece.peer = grid.equal_stages() ? transfer.peer : others[static_cast<std::size_t>(piece.peer)];
  }
  return side;
}

}  // namespace fourfold
