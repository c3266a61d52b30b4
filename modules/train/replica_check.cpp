#include "train/replica_check.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <string>
#include <string_view>

#include "base/error.hpp"
#include "comm/agree.hpp"
#include "comm/collectives.hpp"
#include "h5/element.hpp"

namespace fourfold {

namespace {

// What a rank says of one thing: which it is, and what it holds.
struct Claim {
  std::uint64_t thing = 0, bits = 0;
};

void append(std::string& text, const Range& range) {
  text.append(" ").append(std::to_string(range.begin)).append(":").append(std::to_string(range.end));
}

std::string place_of(const checkpoint::NamedShard& shard) {
  std::string text = shard.name;
  for (const Range& range : shard.shard.box) append(text, range);
  append(text, shard.shard.flat);
  return text;
}

std::uint64_t bits_of(const checkpoint::NamedShard& shard) {
  const auto bytes = static_cast<std::size_t>(shard.shard.size() * h5::element_bytes(shard.type));
  if (shard.fetch) {
    std::string copy(bytes, '\0');
    if (bytes > 0) shard.fetch({0, shard.shard.size()}, copy.data());
    return hash_bytes(copy);
  }
  return hash_bytes(std::string_view(static_cast<const char*>(shard.data), bytes));
}

std::vector<std::vector<Claim>> claims_of_all(const Communicator& world, const std::vector<Claim>& mine) {
  const auto ranks = static_cast<std::size_t>(world.size());
  std::vector<std::int64_t> counts(ranks), sizes(ranks, 1);
  const std::int64_t count = 2 * std::ssize(mine);
  all_gather<std::int64_t>(world, {&count, 1}, counts, sizes, Phase::control);
  std::vector<std::int64_t> packed;
  for (const Claim& claim : mine) {
    packed.push_back(std::bit_cast<std::int64_t>(claim.thing));
    packed.push_back(std::bit_cast<std::int64_t>(claim.bits));
  }
  std::int64_t total = 0;
  for (const std::int64_t one : counts) total += one;
  std::vector<std::int64_t> all(static_cast<std::size_t>(total));
  all_gather<std::int64_t>(world, packed, all, counts, Phase::control);
  std::vector<std::vector<Claim>> claims(ranks);
  std::size_t at = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    for (std::int64_t i = 0; i < counts[rank]; i += 2, at += 2) {
      claims[rank].push_back({std::bit_cast<std::uint64_t>(all[at]), std::bit_cast<std::uint64_t>(all[at + 1])});
    }
  }
  return claims;
}

using Holders = std::map<std::uint64_t, std::vector<int>>;  // bits to the ranks that have them

// "ranks 0, 1, 2"
std::string listed(const std::vector<int>& ranks) {
  constexpr std::size_t kMost = 16;
  std::string text = ranks.size() > 1 ? "ranks" : "rank";
  for (std::size_t i = 0; i < ranks.size() && i < kMost; ++i)
    text.append(i > 0 ? ", " : " ").append(std::to_string(ranks[i]));
  if (ranks.size() > kMost) text.append(" and ").append(std::to_string(ranks.size() - kMost)).append(" more");
  return text;
}

// "rank 3 differs from ranks 0, 1, 2"; most ranks are right, and of equally many those with the lowest.
std::string verdict(const Holders& holders) {
  const std::vector<int>* most = nullptr;
  for (const auto& entry : holders) {
    const std::vector<int>& ranks = entry.second;
    if (most == nullptr || ranks.size() > most->size() ||
        (ranks.size() == most->size() && ranks.front() < most->front())) {
      most = &ranks;
    }
  }
  std::vector<int> others;
  for (const auto& entry : holders) {
    if (&entry.second != most) others.insert(others.end(), entry.second.begin(), entry.second.end());
  }
  std::sort(others.begin(), others.end());
  return listed(others) + (others.size() > 1 ? " differ from " : " differs from ") + listed(*most);
}

}  // namespace

void check_replicas(const Communicator& world, std::int64_t step, const std::vector<checkpoint::NamedShard>& shards,
                    const BatchCoordinate& coordinate, std::uint64_t samples_hash) {
  std::vector<Claim> mine;
  std::vector<std::string> names;
  // Stages may cut the batch into other numbers of parts.
  names.push_back("the samples of batch coordinate " + std::to_string(coordinate.index) + " of " +
                  std::to_string(coordinate.count));
  mine.push_back({hash_bytes(names.back()), samples_hash});
  for (const checkpoint::NamedShard& shard : shards) {
    if (shard.shard.size() == 0) continue;
    names.push_back(shard.name);
    mine.push_back({hash_bytes(place_of(shard)), bits_of(shard)});
  }
  const std::vector<std::vector<Claim>> claims = claims_of_all(world, mine);

  std::map<std::uint64_t, Holders> things;
  for (std::size_t rank = 0; rank < claims.size(); ++rank) {
    for (const Claim& claim : claims[rank]) things[claim.thing][claim.bits].push_back(static_cast<int>(rank));
  }
  std::int64_t different = 0;
  for (const auto& thing : things) different += thing.second.size() > 1 ? 1 : 0;
  if (different == 0) return;
  for (std::size_t rank = 0; rank < claims.size(); ++rank) {
    for (std::size_t i = 0; i < claims[rank].size(); ++i) {
      const Holders& holders = things.at(claims[rank][i].thing);
      if (holders.size() == 1) continue;
      const bool here = world.rank() == static_cast<int>(rank);
      const std::string name = broadcast_string(world, here ? names[i] : "", static_cast<int>(rank));
      fail_all(ExitCode::error,
               "step " + std::to_string(step) + ": replicas differ: " + name + ": " + verdict(holders) +
                   (different > 1 ? "; so do " + std::to_string(different - 1) + " other things" : ""));
    }
  }
}

}  // namespace fourfold
