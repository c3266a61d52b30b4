// The deck's mixture of experts as the layer's options.
#pragma once

#include "deck/deck.hpp"
#include "layers/moe/options.hpp"

namespace fourfold {

// `deck` has a model.moe.
MoeOptions moe_options(const ModelDeck& model);

}  // namespace fourfold
