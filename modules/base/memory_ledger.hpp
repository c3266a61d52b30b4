// Live and peak requested bytes per tag. Whoever allocates a view records it here; tests compare with what
// model/describe.hpp foretells, by integer equality.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace fourfold {

enum class MemoryTag : int { parameters, gradients, optimizer, activations, buffers };
inline constexpr int kMemoryTags = 5;
std::string_view memory_tag_name(MemoryTag tag);

class MemoryLedger {
 public:
  void add(MemoryTag tag, std::int64_t bytes);
  void remove(MemoryTag tag, std::int64_t bytes);
  std::int64_t live(MemoryTag tag) const { return live_[static_cast<int>(tag)]; }
  std::int64_t peak(MemoryTag tag) const { return peak_[static_cast<int>(tag)]; }
  std::int64_t live_total() const;
  std::int64_t peak_total() const { return peak_total_; }
  // Peaks restart from what is live now.
  void reset_peaks();

  // What was foretold of a tag's peak, for out_of_memory().
  void expect(MemoryTag tag, std::int64_t bytes) { expected_[static_cast<int>(tag)] = bytes; }
  // "out of memory: 4.1 kB for activations were refused. Held: ..." with the largest first, the peak, what was
  // foretold, and what to try.
  std::string out_of_memory(MemoryTag tag, std::int64_t refused) const;

 private:
  std::array<std::int64_t, kMemoryTags> live_{};
  std::array<std::int64_t, kMemoryTags> peak_{};
  std::array<std::int64_t, kMemoryTags> expected_{};
  std::int64_t peak_total_ = 0;
};

}  // namespace fourfold
