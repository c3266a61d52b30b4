#include "comm/agree.hpp"

#include <bit>
#include <span>

#include "comm/collectives.hpp"

namespace fourfold {

bool agree_any(const Communicator& group, bool mine, CodePlace where) {
  std::int32_t flag = mine ? 1 : 0;
  all_reduce_max<std::int32_t>(group, {&flag, 1}, {Phase::control, where});
  return flag != 0;
}

bool agree_all(const Communicator& group, bool mine, CodePlace where) {
  return !agree_any(group, !mine, where);
}

std::string broadcast_string(const Communicator& group, const std::string& text, int root, CodePlace where) {
  auto length = static_cast<std::int64_t>(text.size());
  broadcast<std::int64_t>(group, {&length, 1}, root, {Phase::control, where});
  std::string result = group.rank() == root ? text : std::string(static_cast<std::size_t>(length), '\0');
  broadcast(group, std::as_writable_bytes(std::span(result)), root, {Phase::control, where});
  return result;
}

std::vector<std::string> gather_strings(const Communicator& group, const std::string& text, CodePlace where) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const bool root = group.rank() == 0;
  const auto length = static_cast<std::int64_t>(text.size());
  const std::vector<std::int64_t> ones(ranks, 1);
  std::vector<std::int64_t> lengths(ranks);
  all_gather<std::int64_t>(group, {&length, 1}, lengths, ones, {Phase::control, where});
  std::vector<std::int64_t> to(ranks, 0);
  to[0] = length;
  std::vector<std::int64_t> from(ranks, 0);
  if (root) from = lengths;
  std::int64_t total = 0;
  for (const std::int64_t n : from) total += n;
  std::vector<std::byte> all(static_cast<std::size_t>(total));
  all_to_all<std::byte>(group, std::as_bytes(std::span(text)), to, all, from, {Phase::control, where});
  std::vector<std::string> texts;
  const char* at = reinterpret_cast<const char*>(all.data());
  for (const std::int64_t n : from) {
    if (!root) break;
    texts.emplace_back(at, static_cast<std::size_t>(n));
    at += n;
  }
  return texts;
}

int first_different(const Communicator& group, std::uint64_t mine, CodePlace where) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const auto value = std::bit_cast<std::int64_t>(mine);
  const std::vector<std::int64_t> ones(ranks, 1);
  std::vector<std::int64_t> all(ranks);
  all_gather<std::int64_t>(group, {&value, 1}, all, ones, {Phase::control, where});
  for (std::size_t r = 1; r < ranks; ++r)
    if (all[r] != all[0]) return static_cast<int>(r);
  return -1;
}

std::uint64_t hash_bytes(std::string_view bytes) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace fourfold
