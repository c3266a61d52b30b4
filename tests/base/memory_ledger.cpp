#include "base/memory_ledger.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace fourfold {
namespace {

TEST(MemoryLedger, LiveAndPeakPerTagAndInAll) {
  MemoryLedger ledger;
  const std::int64_t big = std::int64_t{3} << 40;  // past 32 bits
  ledger.add(MemoryTag::parameters, big);
  ledger.add(MemoryTag::activations, 100);
  ledger.remove(MemoryTag::activations, 60);
  ledger.add(MemoryTag::buffers, 30);
  EXPECT_EQ(ledger.live(MemoryTag::parameters), big);
  EXPECT_EQ(ledger.live(MemoryTag::activations), 40);
  EXPECT_EQ(ledger.peak(MemoryTag::activations), 100);
  EXPECT_EQ(ledger.live_total(), big + 70);
  EXPECT_EQ(ledger.peak_total(), big + 100)
      << "the peak of the sum is not the sum of the peaks (here " << big + 130 << ")";
  ledger.reset_peaks();
  EXPECT_EQ(ledger.peak(MemoryTag::activations), 40);
  EXPECT_EQ(ledger.peak_total(), big + 70);
  EXPECT_EQ(ledger.live(MemoryTag::gradients), 0);
}

TEST(MemoryLedger, RefusesToGiveBackMoreThanWasTaken) {
  MemoryLedger ledger;
  ledger.add(MemoryTag::gradients, 8);
  EXPECT_THROW(ledger.remove(MemoryTag::gradients, 9), Error);
  EXPECT_THROW(ledger.remove(MemoryTag::optimizer, 1), Error);
  EXPECT_THROW(ledger.add(MemoryTag::gradients, -1), Error);
  ledger.remove(MemoryTag::gradients, 8);
  EXPECT_EQ(ledger.live_total(), 0);
}

TEST(MemoryLedger, NamesEveryTag) {
  for (int i = 0; i < kMemoryTags; ++i) EXPECT_NE(memory_tag_name(static_cast<MemoryTag>(i)), "?");
}

}  // namespace
}  // namespace fourfold
