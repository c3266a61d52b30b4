#include "machine/hosts.hpp"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <string_view>

namespace fourfold {

namespace {

constexpr std::int64_t kMostHosts = std::int64_t{1} << 20;

std::optional<std::int64_t> number_of(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || fault != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

// Cuts at the commas outside of brackets.
std::vector<std::string_view> entries_of(std::string_view text) {
  std::vector<std::string_view> entries;
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] == '[') ++depth;
    if (i < text.size() && text[i] == ']') --depth;
    if (i < text.size() && (text[i] != ',' || depth > 0)) continue;
    entries.push_back(text.substr(begin, i - begin));
    begin = i + 1;
  }
  return entries;
}

// "001-003,007" -> 001 002 003 007: as wide as the first number is written.
std::optional<std::vector<std::string>> range_of(std::string_view text) {
  std::vector<std::string> values;
  for (const std::string_view entry : entries_of(text)) {
    const std::size_t dash = std::min(entry.find('-'), entry.size());
    const std::string_view low = entry.substr(0, dash);
    const std::optional<std::int64_t> first = number_of(low);
    const std::optional<std::int64_t> last = dash < entry.size() ? number_of(entry.substr(dash + 1)) : first;
    if (!first || !last || *last < *first || *last - *first >= kMostHosts) return std::nullopt;
    for (std::int64_t value = *first; value <= *last; ++value) {
      const std::string digits = std::to_string(value);
      values.push_back(std::string(low.size() > digits.size() ? low.size() - digits.size() : 0, '0') + digits);
    }
  }
  return values;
}

}  // namespace

std::optional<std::vector<std::string>> expand_host_list(const std::string& text) {
  std::vector<std::string> hosts;
  for (std::string_view entry : entries_of(text)) {
    std::vector<std::string> names{""};
    if (entry.empty()) return std::nullopt;
    while (!entry.empty()) {
      const std::size_t open = std::min(entry.find('['), entry.size());
      if (entry.substr(0, open).find(']') != std::string_view::npos) return std::nullopt;
      for (std::string& name : names) name += entry.substr(0, open);
      entry.remove_prefix(open);
      if (entry.empty()) break;
      const std::size_t close = entry.find(']');
      if (close == std::string_view::npos) return std::nullopt;
      const std::optional<std::vector<std::string>> range = range_of(entry.substr(1, close - 1));
      if (!range || std::ssize(names) * std::ssize(*range) > kMostHosts) return std::nullopt;
      std::vector<std::string> longer;
      for (const std::string& name : names)
        for (const std::string& number : *range) longer.push_back(name + number);
      names = std::move(longer);
      entry.remove_prefix(close + 1);
    }
    if (std::ssize(hosts) + std::ssize(names) > kMostHosts) return std::nullopt;
    hosts.insert(hosts.end(), names.begin(), names.end());
  }
  return hosts;
}

std::optional<std::vector<std::int64_t>> expand_task_counts(const std::string& text) {
  std::vector<std::int64_t> counts;
  for (const std::string_view entry : entries_of(text)) {
    const std::size_t open = std::min(entry.find("(x"), entry.size());
    const std::optional<std::int64_t> tasks = number_of(entry.substr(0, open));
    std::optional<std::int64_t> times = 1;
    if (open < entry.size()) {
      if (entry.back() != ')') return std::nullopt;
      times = number_of(entry.substr(open + 2, entry.size() - open - 3));
    }
    if (!tasks || !times || *tasks > kMostHosts || *times > kMostHosts || std::ssize(counts) + *times > kMostHosts)
      return std::nullopt;
    counts.insert(counts.end(), static_cast<std::size_t>(*times), *tasks);
  }
  return counts;
}

std::vector<std::string> slurm_hosts(const Variables& variables, std::int64_t ranks) {
  const char* list = variables("SLURM_JOB_NODELIST");
  const char* per_node = variables("SLURM_TASKS_PER_NODE");
  if (list == nullptr || per_node == nullptr) return {};
  const std::optional<std::vector<std::string>> names = expand_host_list(list);
  std::optional<std::vector<std::int64_t>> tasks = expand_task_counts(per_node);
  if (!names || !tasks || names->size() != tasks->size()) return {};
  if (std::accumulate(tasks->begin(), tasks->end(), std::int64_t{0}) != ranks) return {};
  const char* named = variables("SLURM_DISTRIBUTION");
  const std::string distribution = named == nullptr ? "block" : named;
  std::vector<std::string> hosts;
  if (distribution.starts_with("block")) {
    for (std::size_t node = 0; node < names->size(); ++node)
      hosts.insert(hosts.end(), static_cast<std::size_t>((*tasks)[node]), (*names)[node]);
  } else if (distribution.starts_with("cyclic")) {
    while (std::ssize(hosts) < ranks) {
      for (std::size_t node = 0; node < names->size(); ++node)
        if ((*tasks)[node]-- > 0) hosts.push_back((*names)[node]);
    }
  }
  return hosts;
}

}  // namespace fourfold
