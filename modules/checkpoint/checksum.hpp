// The checksums of checkpoints. Each is a sum, modulo 2^64, of one hash per element, so that ranks add their parts and
// the grid does not show:
//
//   x = (i + 1) * 0x9e3779b97f4a7c15;   x ^= x >> 32;   x += v * 0xd6e8feb86659fd93
//   x ^= x >> 29;   x *= 0xbf58476d1ce4e5b9;   hash(i, v) = x ^ (x >> 32)      (one to one in v)
//
// For a dataset: i is the row-major index in the whole tensor, v the element's bits as an unsigned number; one sum per
// 2^20 elements in row-major order. For the bytes outside the datasets: i is the position in the file, v the byte; one
// sum. One changed element always changes its sum; an arbitrary change goes unseen once in 2^64.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "grid/partition.hpp"

namespace fourfold::checkpoint {

inline constexpr std::int64_t kChunkElements = std::int64_t{1} << 20;

// Chunks of a tensor of so many elements.
std::int64_t chunks_of(std::int64_t elements);

// Adds the hashes of the shard's elements in `local` to `sums` (one entry per chunk of the whole tensor). `data`: the
// first of them, `element_bytes` (1, 2, 4 or 8) each.
void add_checksums(const Shard& shard, Range local, const void* data, std::int64_t element_bytes,
                   std::span<std::uint64_t> sums);

// The sum over `bytes` that begin at `position` of a file.
std::uint64_t checksum_bytes(std::span<const unsigned char> bytes, std::int64_t position);

// How often elements are owned, to compare over all ranks with n and n(n-1)/2: their number and the sum of their
// row-major indices modulo 2^64.
struct Coverage {
  std::uint64_t elements = 0;
  std::uint64_t index_sum = 0;
};
Coverage coverage(const Shard& shard, Range owned);

}  // namespace fourfold::checkpoint
