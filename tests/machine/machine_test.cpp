// Costs against values worked out by hand.
#include "machine/machine.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace fourfold {
namespace {

Machine example() {
  Machine machine;
  machine.nodes = 3;
  machine.ranks_per_node = 4;
  machine.inside = {1'000, 100'000'000'000};     // 1 ns, 100 GB/s: 10 ps a byte
  machine.between = {2'000'000, 3'000'000'000};  // 2 us, 3 GB/s: 333 1/3 ps a byte
  machine.fp64 = 1'000'000'000'000;
  machine.fp32 = 3'000'000'000'000;
  machine.bf16 = 7'000'000'000'000;
  machine.memory_bandwidth = 2'000'000'000'000;
  return machine;
}

TEST(Machine, RanksFillNodesInOrder) {
  const Machine machine = example();
  EXPECT_EQ(machine.ranks(), 12);
  EXPECT_EQ(machine.node_of(0), 0);
  EXPECT_EQ(machine.node_of(3), 0);
  EXPECT_EQ(machine.node_of(4), 1);
  EXPECT_EQ(machine.node_of(11), 2);
}

TEST(Machine, CostsRoundUpToThePicosecond) {
  EXPECT_EQ(time_at_rate(0, 7), 0);
  EXPECT_EQ(time_at_rate(1, 1'000'000'000'000), 1);
  EXPECT_EQ(time_at_rate(1, 1'000'000'000'001), 1);
  EXPECT_EQ(time_at_rate(1, 999'999'999'999), 2);
  EXPECT_EQ(time_at_rate(3, 3'000'000'000), 1000);
  EXPECT_EQ(time_at_rate(4, 3'000'000'000), 1334);  // 1333.3
  // Beyond 64 bits on the way, and at the end.
  EXPECT_EQ(time_at_rate(1'000'000'000'000, 1'000'000'000'000), 1'000'000'000'000);
  EXPECT_EQ(time_at_rate(1'000'000'000'001, 7), std::numeric_limits<Picoseconds>::max());
}

TEST(Machine, FreeLinksTakeNoTime) {
  const Machine machine = free_machine(6);
  EXPECT_EQ(machine.ranks(), 6);
  EXPECT_EQ(transfer_time(machine.inside, std::int64_t{1} << 60), 0);
  EXPECT_EQ(collective_time(machine.between, std::int64_t{1} << 60, 1000), 0);
}

TEST(Machine, AKernelTakesTheLongerOfArithmeticAndTraffic) {
  const Machine machine = example();
  EXPECT_EQ(kernel_time(machine, NumberType::fp64, 1000, 0), 1000);
  EXPECT_EQ(kernel_time(machine, NumberType::fp32, 1000, 0), 334);
  EXPECT_EQ(kernel_time(machine, NumberType::bf16, 1000, 0), 143);
  EXPECT_EQ(kernel_time(machine, NumberType::fp64, 10, 31), 16);  // 15.5 of memory
  EXPECT_EQ(kernel_time(machine, NumberType::fp64, 17, 31), 17);
  EXPECT_EQ(kernel_time(machine, NumberType::fp64, 0, 0), 0);
}

TEST(Machine, CollectivesOnARing) {
  const Machine machine = example();
  EXPECT_EQ(transfer_time(machine.link(LinkClass::inside), 64), 640);
  EXPECT_EQ(transfer_time(machine.link(LinkClass::between), 64), 21334);
  EXPECT_EQ(collective_time(machine.inside, 64, 6), 640 + 6'000);
  EXPECT_EQ(collective_time(machine.between, 0, 3), 6'000'000);
}

}  // namespace
}  // namespace fourfold
