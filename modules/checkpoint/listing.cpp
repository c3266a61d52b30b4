#include "checkpoint/listing.hpp"

#include <algorithm>
#include <span>

#include "base/error.hpp"
#include "comm/agree.hpp"
#include "comm/collectives.hpp"

namespace fourfold::checkpoint {

namespace {

// Sums modulo 2^64 over the ranks, each number as two halves so that no sum overflows.
void sum_modulo(const Communicator& world, std::span<std::uint64_t> numbers) {
  std::vector<std::int64_t> halves;
  halves.reserve(2 * numbers.size());
  for (const std::uint64_t number : numbers) {
    halves.push_back(static_cast<std::int64_t>(number & 0xffffffffu));
    halves.push_back(static_cast<std::int64_t>(number >> 32));
  }
  all_reduce_sum<std::int64_t>(world, halves, Summation::fast, Phase::checkpoint);
  for (std::size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = static_cast<std::uint64_t>(halves[2 * i]) + (static_cast<std::uint64_t>(halves[2 * i + 1]) << 32);
}

std::string description(const NamedShard& shard) {
  std::string text = shard.name + " " + std::string(h5::element_name(shard.type));
  for (const std::int64_t length : shard.shard.shape) text += " " + std::to_string(length);
  return text + "\n";
}

void check_equal_lists(const Communicator& world, const std::vector<Listing::Item>& items) {
  std::string list;
  for (const auto& item : items) list += description(*item.shard);
  if (const int rank = first_different(world, hash_bytes(list)); rank >= 0)
    fail_all(ExitCode::error, "rank " + std::to_string(rank) + " has another list of checkpoint tensors than rank 0");
}

void check_names(const std::vector<Listing::Item>& items) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::string& name = items[i].shard->name;
    if (!name.starts_with("/params/") && !name.starts_with("/optimizer/") && !name.starts_with("/gradients/"))
      fail_all(ExitCode::error, "checkpoint tensor '" + name + "' is not in /params, /optimizer or /gradients");
    if (i > 0 && items[i - 1].shard->name == name)
      fail_all(ExitCode::error, "checkpoint tensor '" + name + "' is listed twice");
  }
}

void check_owners(const Communicator& world, const std::vector<Listing::Item>& items) {
  std::vector<std::uint64_t> counts;
  for (const auto& item : items) {
    const Coverage covered = coverage(item.shard->shard, item.shard->owned);
    counts.push_back(covered.elements);
    counts.push_back(covered.index_sum);
  }
  sum_modulo(world, counts);
  for (std::size_t i = 0; i < items.size(); ++i) {
    const NamedShard& shard = *items[i].shard;
    const auto n = static_cast<std::uint64_t>(shard.shard.global_size());
    const std::uint64_t index_sum = n % 2 == 0 ? n / 2 * (n - 1) : (n - 1) / 2 * n;
    if (counts[2 * i] != n || counts[2 * i + 1] != index_sum)
      fail_all(ExitCode::error, "checkpoint tensor '" + shard.name + "': its " + std::to_string(n) +
                                    " elements are not owned by exactly one rank each (" +
                                    std::to_string(counts[2 * i]) + " owned)");
  }
}

}  // namespace

Listing::Listing(const Communicator& world, const std::vector<NamedShard>& shards, std::int64_t transfer_bytes,
                 bool whole_shards) {
  std::vector<std::int64_t> rounds;
  for (const NamedShard& shard : shards) items_.push_back({&shard, {1, transfer_bytes}, 0, 0});
  std::sort(items_.begin(), items_.end(), [](const Item& a, const Item& b) { return a.shard->name < b.shard->name; });
  check_equal_lists(world, items_);
  check_names(items_);
  check_owners(world, items_);
  std::size_t chunks = 0;
  for (Item& item : items_) {
    const NamedShard& shard = *item.shard;
    rounds.push_back(
        h5::rounds_needed(whole_shards ? shard.shard.size() : shard.owned.size(), shard.type, transfer_bytes));
    item.first_sum = chunks;
    item.chunks = static_cast<std::size_t>(chunks_of(shard.shard.global_size()));
    chunks += item.chunks;
  }
  all_reduce_max<std::int64_t>(world, rounds, Phase::checkpoint);
  for (std::size_t i = 0; i < items_.size(); ++i) items_[i].rounds.count = rounds[i];
  sums_.assign(chunks, 0);
}

void Listing::add_to_sums(const Item& item, Range local, const std::byte* data) {
  const NamedShard& shard = *item.shard;
  const Range mine = intersect(local, shard.owned);
  if (mine.empty()) return;
  const std::int64_t bytes = h5::element_bytes(shard.type);
  add_checksums(shard.shard, mine, data + (mine.begin - local.begin) * bytes, bytes,
                std::span(sums_).subspan(item.first_sum, item.chunks));
}

void Listing::reduce_sums(const Communicator& world) {
  sum_modulo(world, sums_);
}

std::vector<std::uint64_t> Listing::sums(const Item& item) const {
  const auto begin = sums_.begin() + static_cast<std::ptrdiff_t>(item.first_sum);
  return {begin, begin + static_cast<std::ptrdiff_t>(item.chunks)};
}

}  // namespace fourfold::checkpoint
