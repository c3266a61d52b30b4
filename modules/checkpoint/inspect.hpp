// Checkpoints looked at from outside: what is in a folder, whether it is intact, and where two states part. Serial, no
// MPI; memory for two blocks of 2^20 elements.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/record.hpp"

namespace fourfold::checkpoint {

// Committed steps of a folder, ascending.
std::vector<std::int64_t> committed_steps(const std::string& folder);

// What the commit record says. With `contents` also every dataset's checksums are computed again.
// Errors: Error (storage, one rank): no such step, a damaged record or file, by name of the first damaged tensor.
CommitRecord inspect_step(const std::string& folder, std::int64_t step, bool contents);

// How far one tensor of two states is apart.
struct TensorDifference {
  std::string name;         // "/gradients/blocks.2.attention.out.weight"
  double distance = 0;      // largest |a - b|; infinite where only one of the two is a number
  double largest_kind = 0;  // largest |a| of all tensors of its kind: /params, /gradients, /optimizer/m, ...
  double relative() const;  // distance / largest_kind; 0 where both are 0
};

// Tensors of both states, the kinds in the order gradients, params, optimizer. Names that only one of them has are an
// error, but for kinds that one of them does not have at all (a checkpoint has no gradients).
// Errors: Error (storage, one rank); Error (input) where names, types or shapes differ.
std::vector<TensorDifference> compare_steps(const std::string& folder_a, const std::string& folder_b,
                                            std::int64_t step);

}  // namespace fourfold::checkpoint
