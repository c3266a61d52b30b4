#include "checkpoint/staging.hpp"

#include <algorithm>
#include <cstring>

namespace fourfold::checkpoint {

namespace {

constexpr std::int64_t kBlockElements = 1 << 15;  // hashed while they are still in the cache

template <class One>
void for_each_block(Range local, One&& one) {
  for (std::int64_t begin = local.begin; begin < local.end; begin += kBlockElements)
    one(Range{begin, std::min(begin + kBlockElements, local.end)});
}

}  // namespace

std::shared_ptr<std::byte> take_host_memory(const AllocateHost& allocate, std::int64_t bytes) {
  if (bytes == 0) return nullptr;
  if (allocate) return allocate(bytes);
  return {new std::byte[static_cast<std::size_t>(bytes)], std::default_delete<std::byte[]>()};
}

void copy_out(const NamedShard& shard, Range local, std::byte* buffer) {
  if (local.empty()) return;
  const std::int64_t bytes = h5::element_bytes(shard.type);
  if (shard.fetch) {
    shard.fetch(local, buffer);
  } else {
    std::memcpy(buffer, static_cast<const std::byte*>(shard.data) + local.begin * bytes,
                static_cast<std::size_t>(local.size() * bytes));
  }
}

void stage_out(Listing& listing, const Listing::Item& item, Range local, std::byte* buffer) {
  const NamedShard& shard = *item.shard;
  const std::int64_t bytes = h5::element_bytes(shard.type);
  if (shard.fetch) copy_out(shard, local, buffer);
  for_each_block(local, [&](Range block) {
    std::byte* const to = buffer + (block.begin - local.begin) * bytes;
    if (!shard.fetch) copy_out(shard, block, to);
    listing.add_to_sums(item, block, to);
  });
}

void stage_in(Listing& listing, const Listing::Item& item, Range local, const std::byte* buffer) {
  const NamedShard& shard = *item.shard;
  const std::int64_t bytes = h5::element_bytes(shard.type);
  for_each_block(local, [&](Range block) {
    const std::byte* const from = buffer + (block.begin - local.begin) * bytes;
    if (!shard.store)
      std::memcpy(static_cast<std::byte*>(shard.data) + block.begin * bytes, from,
                  static_cast<std::size_t>(block.size() * bytes));
    listing.add_to_sums(item, block, from);
  });
  if (shard.store && !local.empty()) shard.store(local, buffer);
}

Range round_of(Range whole, std::int64_t round, std::int64_t limit_bytes, ElementType type) {
  const std::int64_t most = limit_bytes / h5::element_bytes(type);
  const std::int64_t begin = std::min(whole.begin + round * most, whole.end);
  return {begin, std::min(begin + most, whole.end)};
}

}  // namespace fourfold::checkpoint
