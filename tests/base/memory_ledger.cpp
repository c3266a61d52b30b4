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

TEST(MemoryLedger, OutOfMemoryNamesTheLargestFirst) {
  MemoryLedger ledger;
  EXPECT_NE(ledger.out_of_memory(MemoryTag::buffers, 10).find("Held: nothing; the peak was 0 B. Foretold: nothing."),
            std::string::npos);
  ledger.add(MemoryTag::parameters, 2'000'000);
  ledger.add(MemoryTag::activations, 3'000'000);
  ledger.remove(MemoryTag::activations, 500'000);
  ledger.expect(MemoryTag::parameters, 2'000'000);
  ledger.expect(MemoryTag::activations, 7'000'000'000);
  const std::string text = ledger.out_of_memory(MemoryTag::activations, 6'000);
  EXPECT_EQ(
      text.substr(0, text.find(" To need less")),
      "out of memory: 6 kB for activations were refused. Held: activations 2.5 MB, parameters 2 MB, together 4.5 MB; "
      "the peak was 5 MB. Foretold: activations 7 GB, parameters 2 MB, together 7 GB.");
}

TEST(MemoryLedger, NamesEveryTag) {
  for (int i = 0; i < kMemoryTags; ++i) EXPECT_NE(memory_tag_name(static_cast<MemoryTag>(i)), "?");
}

}  // namespace
}  // namespace fourfold
