// Collectives on buffers that the ranks of a node read in each other's memory: sums in rank order to the bit, whatever
// the sizes, with late ranks, many operations under way, groups of a part of the ranks, buffers elsewhere; and the
// memory itself.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "comm/comm_fixture.hpp"
#include "comm/virtual_clock.hpp"
#include "grid/partition.hpp"
#include "test_support.hpp"

namespace fourfold::test {
namespace {

// In shared memory.
template <class T>
class Buffer {
 public:
  explicit Buffer(const std::vector<T>& values)
      : block_(launch().shared_memory()->take(static_cast<std::int64_t>(values.size() * sizeof(T)))),
        span_(reinterpret_cast<T*>(block_.get()), values.size()) {
    std::copy(values.begin(), values.end(), span_.begin());
  }
  std::span<T> span() const { return span_; }
  std::vector<T> values() const { return {span_.begin(), span_.end()}; }

 private:
  SharedMemory::Block block_;
  std::span<T> span_;
};

class SharedTest : public CommTest {
 protected:
  void SetUp() override {
    CommTest::SetUp();
    if (world().size() == 1) GTEST_SKIP() << "NOT TESTED in this launch of one rank; those of 2, 3, 4 and 8 run it";
    if (launch().shared_memory() == nullptr)
      GTEST_SKIP() << "NOT TESTED: no shared memory among these ranks (the line at the start says why), or "
                      "FOURFOLD_TEST_SHARED_MEMORY=off";
  }
  // A rank that comes late: what reads its buffer before it has come reads old values.
  static void be_late(int turn) {
    if (turn % world().size() == world().rank()) usleep(3000);
  }
  static std::int64_t ring(std::int64_t count) {
    return 2 * (count - part(count, world().size(), world().rank()).size());
  }
  // All of it went without MPI.
  static void expect_shared() {
    const CommSums sums = launch().ledger().total();
    EXPECT_EQ(sums.bytes_shared, sums.ring_bytes);
  }
};

template <class T>
class SharedSums : public SharedTest {};
using SharedNumbers = testing::Types<float, double, std::int64_t>;
TYPED_TEST_SUITE(SharedSums, SharedNumbers);

TYPED_TEST(SharedSums, AllReduceIsTheSerialSum) {
  using T = TypeParam;
  const Communicator& world = this->world();
  int turn = 0;
  for (const std::int64_t count : {1, 2, 3, 7, 64, 511, 1537, 4099, 70001}) {
    for (const Summation summation : {Summation::fast, Summation::deterministic}) {
      const Buffer<T> data(values_of<T>(world.rank(), count));
      launch().ledger().clear();
      clear_mpi_traffic();
      this->be_late(turn++);
      all_reduce_sum<T>(world, data.span(), summation, Phase::gradient);
      EXPECT_TRUE(same_bits(data.values(), serial_sums<T>(world.size(), count))) << count;
      const CommSums sums = this->recorded(Operation::all_reduce, Phase::gradient);
      EXPECT_EQ(sums.calls, 1);
      EXPECT_EQ(sums.messages, 2 * (world.size() - 1));
      EXPECT_EQ(sums.elements, count);
      EXPECT_EQ(sums.ring_elements, this->ring(count));
      this->expect_shared();
    }
  }
}

// The next operation may change what the last one gave: nobody may still be reading it.
TYPED_TEST(SharedSums, ResultsAreTheOwnersAgain) {
  using T = TypeParam;
  const Communicator& world = this->world();
  const std::int64_t count = 5001;
  const Buffer<T> data(values_of<T>(world.rank(), count));
  const std::vector<T> serial = serial_sums<T>(world.size(), count);
  for (int turn = 0; turn < (full() ? 2000 : 100); ++turn) {
    const std::vector<T> values = values_of<T>(world.rank(), count);
    std::copy(values.begin(), values.end(), data.span().begin());
    if (turn < 10) this->be_late(turn);
    Pending sum = start_all_reduce_sum<T>(world, data.span(), Summation::fast, Phase::gradient);
    if (turn < 10) this->be_late(turn + 1);
    sum.wait();
    ASSERT_TRUE(same_bits(data.values(), serial)) << turn;
    std::fill(data.span().begin(), data.span().end(), T{99});
  }
}

// More operations than there are slots, waited for in another order than started.
TYPED_TEST(SharedSums, ManyUnderWay) {
  using T = TypeParam;
  const Communicator& world = this->world();
  const std::int64_t count = 9001;
  for (const std::int64_t bucket : {61, 1000, 8999}) {
    const Buffer<T> data(values_of<T>(world.rank(), count));
    std::vector<Pending> pending;
    for (std::int64_t begin = 0; begin < count; begin += bucket)
      pending.push_back(
          start_all_reduce_sum<T>(world,
                                  data.span().subspan(static_cast<std::size_t>(begin),
                                                      static_cast<std::size_t>(std::min(bucket, count - begin))),
                                  Summation::deterministic, Phase::gradient));
    std::shuffle(pending.begin(), pending.end(), std::mt19937_64(seed()));
    for (Pending& one : pending) one.wait();
    EXPECT_TRUE(same_bits(data.values(), serial_sums<T>(world.size(), count))) << bucket;
  }
  this->expect_shared();
}

std::vector<std::vector<std::int64_t>> part_lists(int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  std::vector<std::vector<std::int64_t>> lists;
  for (const std::int64_t count : {1, 5, 599, 4099}) {
    std::vector<std::int64_t> sizes;
    for (int r = 0; r < ranks; ++r) sizes.push_back(part(count, ranks, r).size());
    lists.push_back(sizes);
  }
  std::vector<std::int64_t> last(n, 0), growing(n);
  last.back() = 777;
  for (std::size_t r = 0; r < n; ++r) growing[r] = static_cast<std::int64_t>(r) * 131;
  lists.push_back(last);
  lists.push_back(growing);
  return lists;
}

template <class T>
std::vector<T> own_part(const std::vector<T>& all, const std::vector<std::int64_t>& sizes, int rank) {
  const auto begin = all.begin() + std::accumulate(sizes.begin(), sizes.begin() + rank, std::int64_t{0});
  return {begin, begin + sizes[static_cast<std::size_t>(rank)]};
}

TYPED_TEST(SharedSums, ReduceScatter) {
  using T = TypeParam;
  const Communicator& world = this->world();
  int turn = 0;
  for (const auto& sizes : part_lists(world.size())) {
    const std::int64_t count = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    const Buffer<T> all(values_of<T>(world.rank(), count));
    const std::vector<T> expected = own_part(serial_sums<T>(world.size(), count), sizes, world.rank());
    for (const Summation summation : {Summation::fast, Summation::deterministic}) {
      std::vector<T> mine(expected.size());  // the result may lie anywhere
      this->be_late(turn++);
      reduce_scatter_sum<T>(world, all.span(), mine, sizes, summation, Phase::backward);
      EXPECT_TRUE(same_bits(mine, expected));
    }
    EXPECT_TRUE(same_bits(all.values(), values_of<T>(world.rank(), count)));
  }
  this->expect_shared();
}

// Slices of parts that lie apart, into the own part itself; the same by messages.
TYPED_TEST(SharedSums, Slices) {
  using T = TypeParam;
  const Communicator& world = this->world();
  const std::int64_t ranks = world.size(), stride = 613;
  for (const bool shared : {true, false}) {
    for (const std::int64_t slice : {1, 100, 613}) {
      const Buffer<T> memory(values_of<T>(world.rank(), ranks * stride));
      std::vector<T> plain = memory.values();
      const std::span<T> all = shared ? memory.span() : std::span(plain);
      std::vector<Pending> sums;
      for (std::int64_t begin = 0; begin < stride; begin += slice) {
        const auto size = static_cast<std::size_t>(std::min(slice, stride - begin));
        sums.push_back(
            start_reduce_scatter_slices<T>(world, all.data() + begin, stride,
                                           all.subspan(static_cast<std::size_t>(world.rank() * stride + begin), size),
                                           Summation::deterministic, Phase::gradient));
      }
      for (Pending& sum : sums) sum.wait();
      const std::vector<std::int64_t> sizes(static_cast<std::size_t>(ranks), stride);
      const std::vector<T> got(all.begin(), all.end());
      EXPECT_TRUE(same_bits(own_part(got, sizes, world.rank()),
                            own_part(serial_sums<T>(world.size(), ranks * stride), sizes, world.rank())))
          << slice << " shared " << shared;
      const CommSums moved = launch().ledger().sum(Operation::reduce_scatter, "world", Phase::gradient);
      EXPECT_EQ(moved.ring_elements, (ranks - 1) * stride);
      EXPECT_EQ(moved.calls, (stride + slice - 1) / slice);
      EXPECT_EQ(moved.bytes_shared, shared ? moved.ring_bytes : 0);
      EXPECT_EQ(mpi_traffic().ring_bytes, shared ? 0 : moved.ring_bytes);
      launch().ledger().clear();
      clear_mpi_traffic();
    }
  }
}

template <class T>
class SharedGathers : public SharedTest {};
using SharedMovables = testing::Types<float, double, std::uint16_t, std::byte>;
TYPED_TEST_SUITE(SharedGathers, SharedMovables);

template <class T>
std::vector<T> bytes_of(int rank, std::int64_t count) {
  const std::vector<std::byte> bytes = values_of<std::byte>(rank, count * static_cast<std::int64_t>(sizeof(T)));
  std::vector<T> values(static_cast<std::size_t>(count));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TYPED_TEST(SharedGathers, PartsSideBySide) {
  using T = TypeParam;
  const Communicator& world = this->world();
  int turn = 0;
  for (const auto& sizes : part_lists(world.size())) {
    std::vector<T> expected;
    for (int r = 0; r < world.size(); ++r) {
      const std::vector<T> its = bytes_of<T>(r, sizes[static_cast<std::size_t>(r)]);
      expected.insert(expected.end(), its.begin(), its.end());
    }
    const Buffer<T> mine(bytes_of<T>(world.rank(), sizes[static_cast<std::size_t>(world.rank())]));
    const Buffer<T> all(std::vector<T>(expected.size()));
    this->be_late(turn++);
    all_gather<T>(world, mine.span(), all.span(), sizes, Phase::forward);
    EXPECT_TRUE(same_bits(all.values(), expected));

    std::fill(all.span().begin(), all.span().end(), T{});
    const auto begin = std::accumulate(sizes.begin(), sizes.begin() + world.rank(), std::int64_t{0});
    const std::span<T> place = all.span().subspan(static_cast<std::size_t>(begin), mine.span().size());
    std::copy(mine.span().begin(), mine.span().end(), place.begin());
    this->be_late(turn++);
    start_all_gather<T>(world, place, all.span(), sizes, Phase::forward).wait();
    EXPECT_TRUE(same_bits(all.values(), expected));
  }
  this->expect_shared();
}

using Shared = SharedTest;

// Groups that overlap, their operations under way together and waited for in opposite orders: who waits works on the
// others too.
TEST_F(Shared, SeveralGroupsAtOnce) {
  const int ranks = world().size(), rank = world().rank();
  std::vector<int> all(static_cast<std::size_t>(ranks)), half;
  std::iota(all.begin(), all.end(), 0);
  for (const int r : all)
    if (r % 2 == rank % 2) half.push_back(r);
  for (int round = 0; round < 3; ++round) {  // slots of groups that are gone are used again
    const Communicator whole(world(), all, "whole"), part(world(), half, "part");
    launch().ledger().clear();
    clear_mpi_traffic();
    for (const std::int64_t count : {3, 4099}) {
      const Buffer<double> a(values_of<double>(rank, count)), b(values_of<double>(rank, count));
      Pending first = start_all_reduce_sum<double>(whole, a.span(), Summation::fast, Phase::forward);
      Pending second = start_all_reduce_sum<double>(part, b.span(), Summation::fast, Phase::forward);
      be_late(round);
      // The others of each group come to the same end in another order.
      if (rank % 4 < 2) {
        first.wait();
        second.wait();
      } else {
        second.wait();
        first.wait();
      }
      EXPECT_TRUE(same_bits(a.values(), serial_sums<double>(ranks, count)));
      std::vector<double> expected = values_of<double>(half.front(), count);
      for (std::size_t r = 1; r < half.size(); ++r)
        for (std::int64_t i = 0; i < count; ++i) expected[static_cast<std::size_t>(i)] += value_of<double>(half[r], i);
      EXPECT_TRUE(same_bits(b.values(), expected));
    }
    expect_shared();
  }
}

// Buffers in no shared memory go by messages, beside those that are, and take their numbers.
TEST_F(Shared, BuffersElsewhere) {
  const std::int64_t count = 3001;
  const std::vector<double> values = values_of<double>(world().rank(), count);
  for (int turn = 0; turn < 70; ++turn) {
    const Buffer<double> shared(values);
    std::vector<double> plain = values;
    Pending first = start_all_reduce_sum<double>(world(), plain, Summation::deterministic, Phase::forward);
    Pending second = start_all_reduce_sum<double>(world(), shared.span(), Summation::deterministic, Phase::backward);
    second.wait();
    first.wait();
    EXPECT_TRUE(same_bits(plain, serial_sums<double>(world().size(), count)));
    EXPECT_TRUE(same_bits(shared.values(), plain));
  }
  EXPECT_EQ(recorded(Operation::all_reduce, Phase::forward).bytes_shared, 0);
  const CommSums shared = recorded(Operation::all_reduce, Phase::backward);
  EXPECT_EQ(shared.bytes_shared, shared.ring_bytes);
}

// A rank that waits for a message works on the sum that its sender waits for.
TEST_F(Shared, WaitingForAMessageDoesItsPart) {
  const std::vector<int> two = {0, 1};
  if (world().rank() > 1) return;
  const Communicator pair(world(), two, "pair");
  for (int turn = 0; turn < 20; ++turn) {
    const Buffer<double> data(values_of<double>(world().rank(), 5000));
    Pending sum = start_all_reduce_sum<double>(pair, data.span(), Summation::fast, Phase::forward);
    double token = 0;
    if (world().rank() == 0) {
      start_receive<double>(pair, {&token, 1}, 1, 1, Phase::forward).wait();
      sum.wait();
    } else {
      // Its end is known once rank 0 has done its part, and nothing ends rank 0's wait before.
      sum.wait();
      start_send<double>(pair, {&token, 1}, 0, 1, Phase::forward).wait();
    }
    EXPECT_TRUE(same_bits(data.values(), serial_sums<double>(2, 5000)));
  }
}

TEST_F(Shared, BelowTheSmallestSizeMpiIsAsked) {
  launch().share_from(800);
  for (const std::int64_t count : {99, 100}) {
    launch().ledger().clear();
    clear_mpi_traffic();
    const Buffer<double> data(values_of<double>(world().rank(), count));
    all_reduce_sum<double>(world(), data.span(), Summation::deterministic, Phase::gradient);
    EXPECT_TRUE(same_bits(data.values(), serial_sums<double>(world().size(), count)));
    const CommSums sums = launch().ledger().total();
    EXPECT_EQ(sums.bytes_shared, count < 100 ? 0 : sums.ring_bytes);
  }
  launch().share_from(1);
}

// Nodes of a machine file: its ranks are as far from each other as it says.
TEST_F(Shared, EmulatedNodesReadNothing) {
  launch().emulate_nodes(1);
  const Buffer<double> data(values_of<double>(world().rank(), 5000));
  all_reduce_sum<double>(world(), data.span(), Summation::deterministic, Phase::gradient);
  EXPECT_TRUE(same_bits(data.values(), serial_sums<double>(world().size(), 5000)));
  EXPECT_EQ(launch().ledger().total().bytes_shared, 0);
  EXPECT_EQ(launch().ledger().total().bytes_between_nodes, launch().ledger().total().ring_bytes);
  launch().emulate_nodes(world().size());
}

// With a virtual clock the same times as by messages.
TEST_F(Shared, VirtualClockIsTheSame) {
  Machine machine = free_machine(world().size());
  machine.inside.latency = 7000;
  const auto time = [&](std::int64_t from) {
    launch().share_from(from);
    launch().emulate(machine);
    const Picoseconds before = launch().world().clock().now();
    const Buffer<double> data(values_of<double>(world().rank(), 3000));
    for (int turn = 0; turn < 5; ++turn) {
      be_late(turn);
      world().clock().spend(1000 * (world().rank() + 1));
      all_reduce_sum<double>(world(), data.span(), Summation::deterministic, Phase::gradient);
    }
    return launch().world().clock().now() - before;
  };
  const Picoseconds messages = time(std::int64_t{1} << 40), shared = time(1);
  EXPECT_GT(messages, 0);
  EXPECT_EQ(shared, messages);
  launch().ledger().clear();  // the clock's own notices are in nobody's books
  clear_mpi_traffic();
}

// All members must mean the same operation.
TEST_F(Shared, BuffersOfDifferentSizesAreAnError) {
  const std::vector<int> two = {0, 1};
  if (world().rank() > 1) return;
  const Communicator pair(world(), two, "pair");
  const Buffer<double> data(std::vector<double>(static_cast<std::size_t>(10 + world().rank()), 1.0));
  launch().ledger().clear();
  clear_mpi_traffic();
  try {
    all_reduce_sum<double>(pair, data.span(), Summation::fast, Phase::forward);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.caller(), Caller::one_rank);
    EXPECT_NE(std::string(error.what()).find("group 'pair'"), std::string::npos) << error.what();
  }
  launch().ledger().clear();
  clear_mpi_traffic();
}

TEST(SharedMemoryBlocks, AreGivenOutAgain) {
  const SharedMemory memory;
  EXPECT_EQ(memory.take(0), nullptr);
  std::vector<SharedMemory::Block> blocks;
  for (const std::int64_t bytes : {1, 64, 65, 100000, 7}) blocks.push_back(memory.take(bytes));
  for (const auto& block : blocks) {
    ASSERT_NE(block, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.get()) % 64, 0u);
  }
  EXPECT_EQ(blocks[2].get() - blocks[1].get(), 64);
  EXPECT_EQ(blocks[3].get() - blocks[2].get(), 128);
  std::byte* const first = blocks[0].get();
  // Neighbours that are free are one, in whichever order they went.
  blocks[1] = nullptr;
  blocks[3] = nullptr;
  blocks[2] = nullptr;
  blocks[0] = nullptr;
  EXPECT_EQ(memory.take(100000).get(), first);
  // The tightest range that is large enough.
  SharedMemory::Block big = memory.take(4096), wall = memory.take(64), small = memory.take(128), end = memory.take(64);
  std::byte* const tight = small.get();
  big = nullptr;
  small = nullptr;
  EXPECT_EQ(memory.take(100).get(), tight);
}

TEST(SharedMemoryBlocks, PlacesAreFoundAgain) {
  const SharedMemory memory;
  const SharedMemory::Block block = memory.take(1000);
  const SharedMemory::Place place = memory.find(block.get() + 17);
  ASSERT_TRUE(place.shared());
  EXPECT_EQ(memory.address(place), block.get() + 17);
  const int here = 0;
  EXPECT_FALSE(memory.find(&here).shared());
  // Another reader maps the same bytes.
  const SharedMemory other;
  EXPECT_FALSE(other.find(block.get()).shared());
  SharedMemory::Place nowhere = place;
  nowhere.chunk = 100000;
  EXPECT_EQ(other.address(nowhere), nullptr);
}

// A limit on files would make a growing chunk a deadly signal.
TEST(SharedMemoryBlocks, LimitedFilesRefuse) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  if (before.rlim_cur != RLIM_INFINITY) GTEST_SKIP() << "NOT TESTED: this shell limits files (ulimit -f)";
  rlimit limited = before;
  limited.rlim_cur = rlim_t{1} << 40;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limited), 0);
  const SharedMemory memory;
  EXPECT_EQ(memory.take(10), nullptr);
  EXPECT_NE(memory.refusal().find("ulimit"), std::string::npos) << memory.refusal();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_NE(memory.take(10), nullptr);
}

// More than the machine has is refused, not a signal at the first touch.
TEST(SharedMemoryBlocks, TooMuchIsRefused) {
  const SharedMemory memory;
  EXPECT_EQ(memory.take(std::int64_t{1} << 60), nullptr);
  EXPECT_FALSE(memory.refusal().empty());
  EXPECT_NE(memory.take(10), nullptr);
}

}  // namespace
}  // namespace fourfold::test
