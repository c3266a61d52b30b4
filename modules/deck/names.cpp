#include "deck/names.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdlib>

namespace fourfold {

int edit_distance(const std::string& a, const std::string& b) {
  const std::size_t rows = a.size() + 1;
  const std::size_t cols = b.size() + 1;
  std::vector<std::vector<int>> cost(rows, std::vector<int>(cols));
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < cols; ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = static_cast<int>(i + j);
        continue;
      }
      const int change = a[i - 1] == b[j - 1] ? 0 : 1;
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[rows - 1][cols - 1];
}

std::string nearest_name(const std::string& name, const std::vector<std::string>& names) {
  std::string nearest;
  int least = 0;
  for (const std::string& candidate : names) {
    const int distance = edit_distance(name, candidate);
    const int most = std::max(2, static_cast<int>(std::max(name.size(), candidate.size()) / 3));
    // A distance as long as the name itself has nothing in common with it.
    const bool alike = distance <= most && distance < static_cast<int>(std::max(name.size(), candidate.size()));
    if (alike && (nearest.empty() || distance < least)) {
      nearest = candidate;
      least = distance;
    }
  }
  return nearest;
}

std::string join(const std::vector<std::string>& names, std::size_t most) {
  std::string list;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i == most) return list + ", ...";
    list += (i > 0 ? ", " : "") + names[i];
  }
  return list;
}

std::string join(const std::vector<std::int64_t>& values, std::size_t most) {
  std::vector<std::string> names;
  for (const std::int64_t value : values) names.push_back(std::to_string(value));
  return join(names, most);
}

std::vector<std::int64_t> divisors(std::int64_t n) {
  std::vector<std::int64_t> low;
  std::vector<std::int64_t> high;
  for (std::int64_t d = 1; d <= n / d; ++d) {
    if (n % d != 0) continue;
    low.push_back(d);
    if (d != n / d) high.push_back(n / d);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

std::int64_t nearest_value(std::int64_t value, const std::vector<std::int64_t>& values) {
  return *std::min_element(values.begin(), values.end(), [value](std::int64_t a, std::int64_t b) {
    return std::abs(a - value) < std::abs(b - value);
  });
}

}  // namespace fourfold
