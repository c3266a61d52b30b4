// Checkpoints looked at from outside: what is in a folder, whether it is intact, and where two states part. Serial, no
// MPI; memory for two blocks of 2^20 elements.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/record.hpp"

namespace fourfold::checkpoint {

// Committed steps of a folder, ascending.
std::vector<std::int64_t> committed_steps(const std::string& folder);
// Steps that have a file and no commit record: a save that goes on, or was interrupted.
std::vector<std::int64_t> uncommitted_steps(const std::string& folder);

struct StepPlace {
  std::string folder;
  std::int64_t step = 0;
};
// Of "FOLDER/step_00000100.h5"; none for other names.
std::optional<StepPlace> place_of(const std::string& file);
// Why a step is there no more, or was found damaged by a run (its .rejected file); empty: neither.
std::string rejection(const StepPlace& place);

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

// What there is in the values of one tensor.
struct Census {
  double largest = 0;           // magnitude of those that are finite
  std::int64_t non_finite = 0;  // infinite, or no number
  std::int64_t denormal = 0;    // too small to be stored in full
};
// Reads the tensor. Errors: Error (storage, one rank).
Census census(const StepPlace& place, const DatasetRecord& dataset);

// Two checkpoints, of any steps: what one of them lacks or has in another shape or type, a line each, and how far the
// tensors of both are apart.
struct StateDifferences {
  std::vector<std::string> unlike;
  std::vector<TensorDifference> tensors;  // as compare_steps orders them
};
StateDifferences compare_states(const StepPlace& a, const StepPlace& b);

// Tensors of both states, the kinds in the order gradients, params, optimizer. Names that only one of them has are an
// error, but for kinds that one of them does not have at all (a checkpoint has no gradients).
// Errors: Error (storage, one rank); Error (input) where names, types or shapes differ.
std::vector<TensorDifference> compare_steps(const std::string& folder_a, const std::string& folder_b,
                                            std::int64_t step);

}  // namespace fourfold::checkpoint
