// Transfers between a rank's shard and a dataset. Collective for datasets of parallel files: every rank of the file
// makes the same number of transfers (`rounds`), with empty selections where it has nothing left.
#pragma once

#include <cstdint>
#include <string>

#include "grid/partition.hpp"
#include "h5/file.hpp"

namespace fourfold::h5 {

struct Rounds {
  std::int64_t count = 1;              // the same on every rank: the largest of rounds_needed
  std::int64_t limit_bytes = 1 << 26;  // of one rank's one transfer; below 2^31
};

// Transfers that `elements` need under a limit. Errors: assertion on a limit outside [8, 2^31).
std::int64_t rounds_needed(std::int64_t elements, ElementType type, std::int64_t limit_bytes);

// The shard's elements in `local` are transferred; `data` is the first of them. Returns why HDF5 did not do a transfer
// collectively, empty when it did (always empty for serial files).
// Errors: Error (storage, one rank) of HDF5; assertion when shapes differ or `local` does not fit in the rounds.
std::string write_shard(const Dataset& dataset, const Shard& shard, Range local, const void* data, Rounds rounds);
std::string read_shard(const Dataset& dataset, const Shard& shard, Range local, void* data, Rounds rounds);

// What the last transfer with this property list says of itself.
std::string not_collective_cause(Id transfer_properties, const std::string& where);

}  // namespace fourfold::h5
