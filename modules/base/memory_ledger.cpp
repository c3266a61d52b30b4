#include "base/memory_ledger.hpp"

#include <algorithm>
#include <numeric>
#include <string>

#include "base/error.hpp"

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

}  // namespace fourfold
