// The virtual clock against times worked out by hand, and random programs against a simulation of all ranks at once.
#include "comm/virtual_clock.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "comm/collectives.hpp"
#include "comm/launch.hpp"
#include "comm/ledger.hpp"
#include "mpi_test.hpp"
#include "test_support.hpp"

namespace fourfold::test {
namespace {

constexpr Picoseconds kInside = 1'000, kBetween = 10'000;  // latencies; a byte takes 1 and 10 ps, a FLOP 1 ps

Machine two_ranks_a_node() {
  Machine machine;
  machine.nodes = 16;
  machine.ranks_per_node = 2;
  machine.inside = {kInside, 1'000'000'000'000};
  machine.between = {kBetween, 100'000'000'000};
  machine.fp64 = machine.fp32 = machine.memory_bandwidth = 1'000'000'000'000;
  return machine;
}

class Clock : public testing::Test {
 protected:
  void SetUp() override {
    launch().ledger().clear();
    launch().emulate(two_ranks_a_node());
  }
  static const Communicator& world() { return launch().world(); }
  static VirtualClock& clock() { return world().clock(); }
  static int rank() { return world().rank(); }
  static void work(Picoseconds time) { clock().compute(NumberType::fp64, time, 0); }
  // Ranks 0 and 1 of the world, on one node.
  static Communicator node() { return Communicator(world(), {rank() / 2 * 2, rank() / 2 * 2 + 1}, "node"); }
  static Pending start_sum(const Communicator& group, std::span<double> data, Phase phase = Phase::forward) {
    return start_all_reduce_sum<double>(group, data, Summation::fast, phase);
  }
};

TEST_F(Clock, KernelsAndPauses) {
  EXPECT_EQ(clock().now(), 0);
  clock().compute(NumberType::fp64, 1500, 700);
  EXPECT_EQ(clock().now(), 1500);
  clock().compute(NumberType::fp64, 10, 700);
  EXPECT_EQ(clock().now(), 2200);
  {
    const VirtualClock::Pause pause(clock());
    clock().compute(NumberType::fp64, 1500, 700);
    std::vector<double> data(4);
    start_sum(world(), data).wait();
  }
  std::vector<double> data(4);
  start_sum(world(), data, Phase::control).wait();
  EXPECT_EQ(clock().now(), 2200);
}

TEST_F(Clock, ACollectiveStartsWithTheLastRankAndItsCostCanBeHidden) {
  if (world().size() < 2) return;
  const Communicator pair = node();
  const Picoseconds cost = 2 * 4 * 8 + 2 * kInside;  // of 8 doubles, two parts of 4
  const bool second = rank() % 2 == 1;
  work(second ? 2'000 : 500);
  std::vector<double> data(8, 1.0);
  start_sum(pair, data).wait();
  EXPECT_EQ(clock().now(), 2'000 + cost);
  EXPECT_EQ(launch().ledger().group_sum("node").virtual_time, cost + (second ? 0 : 1'500));
  EXPECT_EQ(data[3], 2.0);

  Pending sum = start_sum(pair, data);
  work(100);
  sum.wait();
  EXPECT_EQ(clock().now(), 2'000 + 2 * cost);
  sum = start_sum(pair, data);
  work(cost + 1);
  sum.wait();
  EXPECT_EQ(clock().now(), 2'000 + 3 * cost + 1);
}

TEST_F(Clock, UnevenPartsCostWhatTheLargestDoes) {
  const int ranks = world().size();
  if (ranks < 2) return;
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(ranks), 0);
  sizes[0] = 5;
  sizes.back() = 7;
  const auto own = static_cast<std::size_t>(sizes[static_cast<std::size_t>(rank())]);
  const std::vector<double> mine(own, 1.0);
  std::vector<double> all(12);
  const bool between = ranks > 2;
  const Picoseconds byte = between ? 10 : 1, latency = between ? kBetween : kInside, steps = ranks - 1;
  const Picoseconds parts = steps * 7 * 8 * byte + steps * latency;
  all_gather<double>(world(), mine, all, sizes, Phase::forward);
  EXPECT_EQ(clock().now(), parts);
  std::vector<double> part(own);
  reduce_scatter_sum<double>(world(), all, part, sizes, Summation::fast, Phase::backward);
  EXPECT_EQ(clock().now(), 2 * parts);
  // 10 elements over the ranks, the first part is the largest.
  std::vector<float> sum(10);
  all_reduce_sum<float>(world(), sum, Summation::fast, Phase::gradient);
  const Picoseconds reduced = 2 * steps * ((10 + ranks - 1) / ranks) * 4 * byte + 2 * steps * latency;
  EXPECT_EQ(clock().now(), 2 * parts + reduced);
  std::vector<float> text(10);
  broadcast<float>(world(), text, 0, Phase::update);
  const Picoseconds spread = 40 * byte + steps * latency;
  EXPECT_EQ(clock().now(), 2 * parts + reduced + spread);
  barrier(world(), Phase::update);
  EXPECT_EQ(clock().now(), 2 * parts + reduced + spread + steps * latency);
  // Rank 0 alone sends, 3 doubles to the last.
  std::vector<std::int64_t> to(static_cast<std::size_t>(ranks), 0), from = to;
  if (rank() == 0) to.back() = 3;
  if (rank() == ranks - 1) from[0] = 3;
  std::vector<double> given(rank() == 0 ? 3 : 0), got(rank() == ranks - 1 ? 3 : 0);
  all_to_all<double>(world(), given, to, got, from, Phase::update);
  EXPECT_EQ(clock().now(), 2 * parts + reduced + spread + 2 * steps * latency + 24 * byte);
  EXPECT_EQ(launch().ledger().sum(Operation::all_to_all, "world", Phase::update).messages, rank() == 0 ? 1 : 0);
}

TEST_F(Clock, ChannelsKeepTheOrderOfPostingAndRunBesideEachOther) {
  if (world().size() < 4) return;
  const Communicator pair = node();
  const int other = rank() < 2 ? rank() + 2 : rank() - 2;
  if (rank() > 3) return;
  const Communicator across(world(), {std::min(rank(), other), std::max(rank(), other)}, "across");
  std::vector<double> a(2), b(2), c(2);
  const Picoseconds near = 16 + 2 * kInside, far = 160 + 2 * kBetween;
  Pending first = start_sum(pair, a);
  Pending second = start_sum(pair, b);
  Pending beside = start_sum(across, c);
  work(7);
  second.wait();
  EXPECT_EQ(clock().now(), 2 * near);  // behind the first
  first.wait();
  EXPECT_EQ(clock().now(), 2 * near);
  beside.wait();
  EXPECT_EQ(clock().now(), far);  // started at once
  // One member late on the channel between nodes holds up the next operation of its partner there, not inside.
  if (rank() < 2) work(500);
  beside = start_sum(across, c);
  Pending inside = start_sum(pair, a);
  inside.wait();
  EXPECT_EQ(clock().now(), far + (rank() < 2 ? 500 : 0) + near);
  beside.wait();
  EXPECT_EQ(clock().now(), 2 * far + 500);
}

TEST_F(Clock, MessagesCarryTheirSendersTime) {
  if (world().size() < 2 || rank() > 1) return;
  std::vector<std::byte> a(100), b(300);
  const auto send = [&](std::vector<std::byte>& data, int tag) {
    return start_send<std::byte>(world(), data, 1, tag, Phase::forward);
  };
  const auto receive = [&](std::vector<std::byte>& data, int tag) {
    return start_receive<std::byte>(world(), data, 0, tag, Phase::forward);
  };
  if (rank() == 0) {
    work(50);
    Pending first = send(a, 3);
    Pending second = send(b, 4);
    first.wait();
    EXPECT_EQ(clock().now(), 150);
    second.wait();
    EXPECT_EQ(clock().now(), 450);
    EXPECT_EQ(launch().ledger().total().messages, 2);
  } else {
    work(1'300);
    Pending second = receive(b, 4);  // tags, not the order of posting, say which is which
    Pending first = receive(a, 3);
    first.wait();
    EXPECT_EQ(clock().now(), 1'300);  // it came at 1150
    second.wait();
    EXPECT_EQ(clock().now(), 450 + kInside);
    EXPECT_EQ(launch().ledger().total().virtual_time, 150);
  }
}

TEST_F(Clock, NoticesGoOutWhileARankWaitsForSomethingElse) {
  if (world().size() < 2 || rank() > 1) return;
  const Communicator pair = node();
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::vector<double> a(2), b(2);
    if (rank() == 0) usleep(2000);
    Pending first = start_sum(pair, a);
    Pending second = start_sum(pair, b);
    std::int32_t token = 0;
    if (rank() == 0) {
      second.wait();
      start_send<std::int32_t>(world(), {&token, 1}, 1, 0, Phase::control).wait();
    } else {
      start_receive<std::int32_t>(world(), {&token, 1}, 0, 0, Phase::control).wait();
    }
  }
  EXPECT_EQ(clock().now(), 20 * 2 * (16 + 2 * kInside));
}

// Random programs of kernels and overlapping sums over groups inside and across nodes. The ranks run them with random
// real delays; the reference walks through the same program once for all ranks.
struct Step {
  int kind;                        // 0: a kernel, 1: start a sum, 2: wait for the oldest
  std::vector<Picoseconds> times;  // of the kernel, by rank
  int group = 0;
  std::int64_t elements = 0;
};

struct Groups {
  std::vector<std::vector<std::vector<int>>> partitions;  // a way to cut the world into groups of equal place
};

std::vector<Picoseconds> reference(const std::vector<Step>& program, const Groups& groups, int ranks) {
  struct Open {
    std::vector<Picoseconds> end;
  };
  std::vector<Picoseconds> now(static_cast<std::size_t>(ranks), 0);
  std::vector<std::array<Picoseconds, 2>> free(now.size(), {0, 0});
  std::vector<Open> open;
  const auto wait = [&] {
    for (std::size_t r = 0; r < now.size(); ++r) now[r] = std::max(now[r], open.front().end[r]);
    open.erase(open.begin());
  };
  for (const Step& step : program) {
    if (step.kind == 0) {
      for (std::size_t r = 0; r < now.size(); ++r) now[r] += step.times[r];
    } else if (step.kind == 1) {
      Open operation{std::vector<Picoseconds>(now.size(), 0)};
      for (const std::vector<int>& members : groups.partitions[static_cast<std::size_t>(step.group)]) {
        const auto size = static_cast<std::int64_t>(members.size());
        if (size == 1) continue;
        const bool far = std::any_of(members.begin(), members.end(), [&](int m) { return m / 2 != members[0] / 2; });
        Picoseconds start = 0;
        for (const int m : members) {
          const auto r = static_cast<std::size_t>(m);
          start = std::max({start, now[r], free[r][far ? 1 : 0]});
        }
        const std::int64_t bytes = 2 * (size - 1) * ((step.elements + size - 1) / size) * 8;
        const Picoseconds end = start + bytes * (far ? 10 : 1) + 2 * (size - 1) * (far ? kBetween : kInside);
        for (const int m : members)
          operation.end[static_cast<std::size_t>(m)] = free[static_cast<std::size_t>(m)][far ? 1 : 0] = end;
      }
      open.push_back(std::move(operation));
    } else if (!open.empty()) {
      wait();
    }
  }
  while (!open.empty()) wait();
  return now;
}

TEST_F(Clock, RandomProgramsTakeTheSameTimeWhateverTheHostDoes) {
  const int ranks = world().size();
  Groups groups;
  const auto stride = [&](int size, int step) {  // groups of `size` ranks, `step` apart
    std::vector<std::vector<int>> cut;
    for (int r = 0; r < ranks; ++r) {
      if (r / step % size != 0) continue;
      cut.emplace_back();
      for (int i = 0; i < size; ++i) cut.back().push_back(r + i * step);
    }
    groups.partitions.push_back(cut);
  };
  for (int size = 1; size <= ranks; size *= 2)
    for (int step = 1; step * size <= ranks; step *= 2) stride(size, step);
  std::vector<Communicator> comms;
  for (const auto& partition : groups.partitions) {
    for (const std::vector<int>& members : partition) {
      if (std::find(members.begin(), members.end(), rank()) != members.end()) comms.emplace_back(world(), members, "g");
    }
  }
  std::mt19937_64 engine(seed());
  for (int trial = 0; trial < (full() ? 40 : 8); ++trial) {
    std::vector<Step> program;
    for (int i = 0; i < 40; ++i) {
      Step step{static_cast<int>(engine() % 3),
                {},
                static_cast<int>(engine() % comms.size()),
                static_cast<std::int64_t>(engine() % 100)};
      for (int r = 0; r < ranks; ++r) step.times.push_back(static_cast<Picoseconds>(engine() % 20'000));
      program.push_back(step);
    }
    const std::vector<Picoseconds> expected = reference(program, groups, ranks);
    for (int repeat = 0; repeat < 2; ++repeat) {
      std::mt19937_64 delays(engine() + static_cast<std::uint64_t>(rank()));
      launch().emulate(two_ranks_a_node());
      // By messages, or in each other's memory.
      const auto memory = repeat == 1 ? launch().shared_memory() : nullptr;
      std::vector<std::shared_ptr<std::byte>> data;
      std::vector<Pending> open;
      for (const Step& step : program) {
        if (delays() % 8 == 0) usleep(static_cast<useconds_t>(delays() % 300));
        if (step.kind == 0) {
          work(step.times[static_cast<std::size_t>(rank())]);
        } else if (step.kind == 1) {
          const auto bytes = static_cast<std::size_t>(step.elements) * sizeof(double);
          data.push_back(memory != nullptr
                             ? memory->take(static_cast<std::int64_t>(bytes))
                             : std::shared_ptr<std::byte>(new std::byte[bytes], std::default_delete<std::byte[]>()));
          auto* numbers = reinterpret_cast<double*>(data.back().get());
          std::fill_n(numbers, step.elements, 1.0);
          open.push_back(start_sum(comms[static_cast<std::size_t>(step.group)],
                                   {numbers, static_cast<std::size_t>(step.elements)}));
        } else if (!open.empty()) {
          open.front().wait();
          open.erase(open.begin());
        }
      }
      for (Pending& pending : open) pending.wait();
      EXPECT_EQ(clock().now(), expected[static_cast<std::size_t>(rank())]) << "trial " << trial;
    }
  }
}

}  // namespace
}  // namespace fourfold::test
