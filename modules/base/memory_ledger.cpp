#include "base/memory_ledger.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "base/error.hpp"
#include "base/units.hpp"

namespace fourfold {

std::string_view memory_tag_name(MemoryTag tag) {
  switch (tag) {
    case MemoryTag::parameters:
      return "parameters";
    case MemoryTag::gradients:
      return "gradients";
    case MemoryTag::optimizer:
      return "optimizer";
    case MemoryTag::activations:
      return "activations";
    case MemoryTag::buffers:
      return "buffers";
  }
  return "?";
}

namespace {

// "activations 1.2 GB, parameters 300 MB, together 1.5 GB"
std::string largest_first(const std::array<std::int64_t, kMemoryTags>& bytes) {
  std::array<std::size_t, kMemoryTags> order{};
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return bytes[a] > bytes[b]; });
  std::string text;
  for (const std::size_t i : order) {
    if (bytes[i] > 0)
      text += fmt::format("{} {}B, ", memory_tag_name(static_cast<MemoryTag>(i)),
                          format_count(static_cast<double>(bytes[i])));
  }
  if (text.empty()) return "nothing";
  const auto together = std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
  return text + fmt::format("together {}B", format_count(static_cast<double>(together)));
}

}  // namespace

void MemoryLedger::add(MemoryTag tag, std::int64_t bytes) {
  FOURFOLD_ASSERT(bytes >= 0, "an allocation has no negative size");
  const auto i = static_cast<std::size_t>(tag);
  live_[i] += bytes;
  peak_[i] = std::max(peak_[i], live_[i]);
  peak_total_ = std::max(peak_total_, live_total());
}

void MemoryLedger::remove(MemoryTag tag, std::int64_t bytes) {
  const auto i = static_cast<std::size_t>(tag);
  FOURFOLD_ASSERT(bytes >= 0 && bytes <= live_[i],
                  "more bytes of " + std::string(memory_tag_name(tag)) + " were given back than were taken");
  live_[i] -= bytes;
}

std::int64_t MemoryLedger::live_total() const {
  return std::accumulate(live_.begin(), live_.end(), std::int64_t{0});
}

void MemoryLedger::reset_peaks() {
  peak_ = live_;
  peak_total_ = live_total();
}

std::string MemoryLedger::out_of_memory(MemoryTag tag, std::int64_t refused) const {
  return fmt::format(
      "out of memory: {}B for {} were refused. Held: {}; the peak was {}B. Foretold: {}. To need less: "
      "activations.default: recompute, a smaller batch.micro, optimizer.shard, or more ranks on parallel.dense.depth, "
      "row or col",
      format_count(static_cast<double>(refused)), memory_tag_name(tag), largest_first(live_),
      format_count(static_cast<double>(peak_total_)), largest_first(expected_));
}

}  // namespace fourfold
