// Help for people who mistype: the nearest of some names, and lists for messages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fourfold {

// Insertions, deletions, substitutions and swaps of neighbours that turn a into b (optimal string alignment distance).
int edit_distance(const std::string& a, const std::string& b);

// The name with the least distance, if that is at most a third of the longer one (and at least 2); else "".
std::string nearest_name(const std::string& name, const std::vector<std::string>& names);

// "a, b, c"; after `most` entries "...".
std::string join(const std::vector<std::string>& names, std::size_t most = 64);
std::string join(const std::vector<std::int64_t>& values, std::size_t most = 24);

// Every divisor of n >= 1, ascending.
std::vector<std::int64_t> divisors(std::int64_t n);

// The entry of a non-empty list with the least distance to `value` (the smaller of two).
std::int64_t nearest_value(std::int64_t value, const std::vector<std::int64_t>& values);

}  // namespace fourfold
