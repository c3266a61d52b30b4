#include "base/units.hpp"

#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace fourfold {

std::string format_duration(double seconds) {
  if (seconds < 10) return fmt::format("{:.1f}s", seconds);
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole % 3600 / 60);
}

std::string format_count(double count) {
  for (const auto& [unit, name] : {std::pair{1e15, "P"}, {1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}}) {
    if (count >= unit) return fmt::format("{:.3g} {}", count / unit, name);
  }
  return fmt::format("{:.3g} ", count);
}

std::string format_thousands(std::int64_t number) {
  const std::string digits = std::to_string(number);
  const std::size_t first = number < 0 ? 1 : 0;  // a sign is followed by no comma
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > first && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

}  // namespace fourfold
