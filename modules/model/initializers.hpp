// Initial values by the deck: functions of (seed, parameter name, global index), never of the grid.
#pragma once

#include <cstdint>
#include <string>

#include "deck/deck.hpp"
#include "tensor/param.hpp"

namespace fourfold {

// Matrices (and embedding tables) of `columns` columns.
//   normal  std x N(0, 1); `residual` projections x 1/sqrt(2 x layers) when init.scale_residual
//   dyadic  in each row 1 to init.nonzeros entries of +-1/2, the rest 0
Initializer make_initializer(const ModelDeck& model, std::uint64_t seed, const std::string& name, std::int64_t columns,
                             bool residual);

}  // namespace fourfold
