// Whether ranks that hold the same thing hold the same bits (debug.replica_check): replicas of parameters and optimizer
// states, and the samples of ranks at one batch coordinate. Whatever makes them part (a gradient sum that misses an
// axis, peers that read other samples, a flipped bit) shows here and nowhere else.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "comm/communicator.hpp"
#include "train/micro_batch.hpp"

namespace fourfold {

// Collective over `world`. Which parts are replicas of each other follows from their places in the logical tensors,
// never from the groups that summed them. Every rank gets 16 bytes of every rank's every tensor.
// coordinate, samples_hash: of this rank's samples of the step.
// Errors: fail_all (error) with step, first tensor that differs, and the ranks that are not like the most.
void check_replicas(const Communicator& world, std::int64_t step, const std::vector<checkpoint::NamedShard>& shards,
                    const BatchCoordinate& coordinate, std::uint64_t samples_hash);

}  // namespace fourfold
