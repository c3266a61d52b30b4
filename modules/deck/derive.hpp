// Values that follow from other keys, and the arithmetic they share with the cross checks.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "grid/axes.hpp"
#include "grid/partition.hpp"
#include "grid/process_grid.hpp"

namespace fourfold {

// Fills what needs no rank count: kv_heads, head_dim, ffn.hidden, sequence of an embedding net, batch.global's default.
// A value that cannot be derived (hidden / heads with a remainder) stays 0.
void derive_sizes(Deck& deck);

// Fills parallel.dense.data, parallel.moe and the batch where the rank count (or the deck alone) settles them.
// `ranks` may be unknown; what does not divide stays 0, the cross checks say why.
void derive_grid(Deck& deck, std::optional<std::int64_t> ranks);

// What the model can be cut into: embedding, blocks and head; the matrices of an mlp; the blocks of a residual stack.
std::int64_t unit_count(const ModelDeck& model);

// Layers that have a number (the blocks; the matrices of an mlp), and the unit of the first.
std::int64_t layer_count(const ModelDeck& model);
std::int64_t first_layer_unit(const ModelDeck& model);
// The units that an entry of a list of layers names ("3", "0-7", "head"); nothing where the model has no such.
std::optional<Range> named_units(const ModelDeck& model, const std::string& entry);
// By parallel.activations, one entry a unit. The embedding holds nothing between forward and backward: keep.
std::vector<Keeping> keeping_of_units(const Deck& deck);
bool recomputes_sublayer(const ActivationsDeck& activations, const std::string& sublayer);

// Of a net that takes rows: columns of its inputs and of its outputs (classes).
std::int64_t input_width(const ModelDeck& model);
std::int64_t output_width(const ModelDeck& model);

// The product, or the largest 64-bit integer where it does not fit.
std::int64_t capped_product(std::initializer_list<std::int64_t> factors);

// The deck's rank count: of all stages together; nothing while parallel.dense.data is 0.
std::optional<std::int64_t> deck_ranks(const Deck& deck);

// Ranks that hold different parts of the weights: depth x row x col.
std::int64_t weight_parts(const DenseShape& dense);

// Into how many equal parts a reduction group of `ranks` ranks cuts its buffers (padded to a multiple of it): by the
// sharded update, or by a sum of gradients in two levels. 1: neither.
std::int64_t update_parts(const Deck& deck, std::int64_t ranks);

// Both views of one stage. parallel.dense.data must be known, or parallel.stage_grids given. Without parallel.moe the
// MoE grid is all replicas.
StageShape stage_shape(const Deck& deck, int stage = 0);

// As if all stages had the grid of this place's, and as if every coordinate had as many sequences of a micro-batch as
// this one: what arithmetic about a single rank needs. The deck itself where stages are equal.
Deck deck_of_place(const Deck& deck, const Coordinates& here);

}  // namespace fourfold
