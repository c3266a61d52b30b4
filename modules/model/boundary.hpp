// What crosses from one unit of the model to the next, and which part of it a rank of any grid holds: the layouts that
// the hand-off between two stages repartitions. Arithmetic: nothing here communicates.
#pragma once

#include <vector>

#include "deck/deck.hpp"
#include "grid/process_grid.hpp"
#include "tensor/layout.hpp"

namespace fourfold {

// What enters unit `unit` (above 0) at this place of the grid, of a micro-batch of `samples` sequences in all: rows as
// layers/rows.hpp plans them, sequences counted from the micro-batch's first; columns cut over the axis that the unit
// reads them over. Equal on all ranks of an axis that cuts none of it.
TokenLayout boundary_layout(const Deck& deck, const ProcessGrid& grid, const Coordinates& here, std::int64_t unit,
                            std::int64_t samples);

// In generation every sequence has tokens of its own, ranges[s] (empty: none in this pass), and whole sequences are cut
// over data and depth.
Range generated_part(const ProcessGrid& grid, const Coordinates& here, std::int64_t sequences);
TokenLayout generated_layout(const Deck& deck, const ProcessGrid& grid, const Coordinates& here,
                             const std::vector<Range>& ranges);

}  // namespace fourfold
