// The grids that fit a number of ranks: for tests of every layout, for planners, and for messages.
#pragma once

#include <string>
#include <vector>

#include "grid/axes.hpp"

namespace fourfold {

// Every ordered factorisation of n >= 1 into (data, depth, row, col), lexicographic.
std::vector<DenseShape> dense_factorisations(int n);
std::vector<MoeShape> moe_factorisations(int n);

// For messages: grids of exactly `ranks` ranks (of one stage), nearest to `asked` first, at most `most` of them and
// then how many more there are: "data 3, depth 1, row 4, col 1; data 1, depth 1, row 12, col 1; ... (38 more)". The
// distance is the sum over the axes of |log(factor / asked)|, which counts doubling an axis like halving it.
std::string factorisation_hint(int ranks, const DenseShape& asked, std::size_t most = 6);
std::string factorisation_hint(int ranks, const MoeShape& asked, std::size_t most = 6);

// "data 2, depth 1, row 4, col 1" and "replica 1, expert 8, row 1, col 1".
std::string shape_text(const DenseShape& shape);
std::string shape_text(const MoeShape& shape);

}  // namespace fourfold
