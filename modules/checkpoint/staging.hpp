// A rank's elements on their way between where they live and a buffer in host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/listing.hpp"

namespace fourfold::checkpoint {

std::shared_ptr<std::byte> take_host_memory(const AllocateHost& allocate, std::int64_t bytes);

// The local elements of a shard in `local` to the buffer.
void copy_out(const NamedShard& shard, Range local, std::byte* buffer);
// The same of the item's shard, and their hashes to the sums.
void stage_out(Listing& listing, const Listing::Item& item, Range local, std::byte* buffer);
// The same the other way.
void stage_in(Listing& listing, const Listing::Item& item, Range local, const std::byte* buffer);

// Transfer `round` of the local elements in `whole`, of at most so many bytes; empty where there are none left.
Range round_of(Range whole, std::int64_t round, std::int64_t limit_bytes, ElementType type);

}  // namespace fourfold::checkpoint
