#include "checkpoint/checksum.hpp"

#include <algorithm>
#include <cstring>

#include "base/error.hpp"
#include "checkpoint/runs.hpp"

namespace fourfold::checkpoint {

namespace {

inline std::uint64_t hash(std::uint64_t index, std::uint64_t bits) {
  std::uint64_t x = (index + 1) * 0x9e3779b97f4a7c15u;
  x ^= x >> 32;
  x += bits * 0xd6e8feb86659fd93u;
  x ^= x >> 29;
  x *= 0xbf58476d1ce4e5b9u;
  return x ^ (x >> 32);
}

template <class Bits>
std::uint64_t sum_run(const char* data, std::int64_t elements, std::uint64_t first_index) {
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < elements; ++i) {
    Bits bits;
    std::memcpy(&bits, data + i * static_cast<std::int64_t>(sizeof(Bits)), sizeof(Bits));
    sum += hash(first_index + static_cast<std::uint64_t>(i), bits);
  }
  return sum;
}

std::uint64_t sum_run(const char* data, std::int64_t elements, std::int64_t first_index, std::int64_t element_bytes) {
  const auto index = static_cast<std::uint64_t>(first_index);
  switch (element_bytes) {
    case 1:
      return sum_run<std::uint8_t>(data, elements, index);
    case 2:
      return sum_run<std::uint16_t>(data, elements, index);
    case 4:
      return sum_run<std::uint32_t>(data, elements, index);
    default:
      return sum_run<std::uint64_t>(data, elements, index);
  }
}

}  // namespace

std::int64_t chunks_of(std::int64_t elements) {
  return (elements + kChunkElements - 1) / kChunkElements;
}

void add_checksums(const Shard& shard, Range local_range, const void* data, std::int64_t element_bytes,
                   std::span<std::uint64_t> sums) {
  FOURFOLD_ASSERT(static_cast<std::int64_t>(sums.size()) == chunks_of(shard.global_size()), "one sum per chunk");
  const auto* bytes = static_cast<const char*>(data);
  for_each_run(shard, local_range, [&](std::int64_t local, std::int64_t global, std::int64_t length) {
    local -= local_range.begin;
    while (length > 0) {
      const std::int64_t now = std::min(length, kChunkElements - global % kChunkElements);
      sums[static_cast<std::size_t>(global / kChunkElements)] +=
          sum_run(bytes + local * element_bytes, now, global, element_bytes);
      local += now;
      global += now;
      length -= now;
    }
  });
}

std::uint64_t checksum_bytes(std::span<const unsigned char> bytes, std::int64_t position) {
  return sum_run<std::uint8_t>(reinterpret_cast<const char*>(bytes.data()), static_cast<std::int64_t>(bytes.size()),
                               static_cast<std::uint64_t>(position));
}

Coverage coverage(const Shard& shard, Range owned) {
  Coverage result;
  for_each_run(shard, owned, [&](std::int64_t, std::int64_t global, std::int64_t length) {
    const auto first = static_cast<std::uint64_t>(global);
    const auto count = static_cast<std::uint64_t>(length);
    result.elements += count;
    result.index_sum += first * count + (count % 2 == 0 ? count / 2 * (count - 1) : (count - 1) / 2 * count);
  });
  return result;
}

}  // namespace fourfold::checkpoint
