// What a save or load is about, checked on all ranks: the same list everywhere, each element owned once.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/checksum.hpp"
#include "h5/transfer.hpp"

namespace fourfold::checkpoint {

class Listing {
 public:
  // Collective. `whole_shards`: rounds count the whole shard of a rank (loads), not only what it owns (saves).
  // Errors (all ranks, error): the ranks' lists differ, a name twice, a name outside of /params, /optimizer and
  // /gradients, an element that is not owned exactly once.
  Listing(const Communicator& world, const std::vector<NamedShard>& shards, std::int64_t transfer_bytes,
          bool whole_shards);

  struct Item {
    const NamedShard* shard;
    h5::Rounds rounds;
    std::size_t first_sum;  // of its chunks, in sums
    std::size_t chunks;
  };
  const std::vector<Item>& items() const { return items_; }  // sorted by name

  // Adds the hashes of what this rank owns of the item's elements in `local`; `data` is the first of these.
  void add_to_sums(const Item& item, Range local, const std::byte* data);
  // Collective: from now on the sums are those of all ranks.
  void reduce_sums(const Communicator& world);
  std::vector<std::uint64_t> sums(const Item& item) const;

 private:
  std::vector<Item> items_;
  std::vector<std::uint64_t> sums_;
};

}  // namespace fourfold::checkpoint
