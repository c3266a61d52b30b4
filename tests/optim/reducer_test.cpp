#include "optim/reducer.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/random.hpp"
#include "comm/collectives.hpp"
#include "small_store.hpp"

namespace fourfold {
namespace {

// data x row over the ranks there are: 1, 2 x 1, 2 x 2.
DenseShape shape_of(int ranks) {
  return {.data = ranks > 1 ? 2 : 1, .row = ranks > 2 ? ranks / 2 : 1};
}

const std::vector<GroupKey> kSets = {{Axis::data}, {Axis::data, Axis::row}};

const std::int64_t kDefaultBucket = CommDeck().bucket_bytes;

template <class T>
T gradient_of(const std::string& name, int rank, std::size_t i) {
  return static_cast<T>(normal(random_stream(3, name, static_cast<std::uint64_t>(rank)), i));
}

template <class T>
void fill_store(ParamStore<T>& store, Pool& pool, int rank) {
  store.declare(test::whole_spec("a", {7, 11}, {Axis::data}));
  store.declare(test::whole_spec("gate", {5, 3}, {Axis::data, Axis::row}));
  store.declare(test::whole_spec("b", {13}, {Axis::data}));
  store.declare(test::whole_spec("alone", {4}, {}));
  store.declare(test::whole_spec("empty", {0, 4}, {Axis::data}));
  store.allocate(pool);
  for (Param<T>& param : store.params()) {
    std::vector<double> g(param.grad.extent(0));
    for (std::size_t i = 0; i < g.size(); ++i) g[i] = gradient_of<T>(param.spec.name, rank, i);
    test::set_values(param.grad, g);
  }
}

// Deterministic: bit for bit the sum in coordinate order, whatever the bucket.
template <class T>
void expect_sums(Summation summation, std::int64_t bucket_bytes) {
  const Communicator& world = test::launch().world();
  const GridComms comms(world, test::grid_of(shape_of(world.size())), kSets);
  MemoryLedger ledger;
  Pool pool(ledger);
  ParamStore<T> store;
  fill_store(store, pool, world.rank());
  Deck deck;
  deck.numerics.deterministic = summation == Summation::deterministic;
  deck.comm.bucket_bytes = bucket_bytes;
  test::Updating<T>(deck, comms, store, pool).reducer.reduce();
  for (const Param<T>& param : store.params()) {
    const std::vector<int> ranks = comms.grid().group(world.rank(), param.spec.sum_over);
    const auto got = test::get_values(param.grad);
    for (std::size_t i = 0; i < got.size(); ++i) {
      T expected = gradient_of<T>(param.spec.name, ranks[0], i);
      for (std::size_t r = 1; r < ranks.size(); ++r) expected += gradient_of<T>(param.spec.name, ranks[r], i);
      if (deck.numerics.deterministic) {
        EXPECT_EQ(got[i], expected) << param.spec.name << " " << i << " bucket " << bucket_bytes;
      } else {
        EXPECT_NEAR(got[i], expected, sizeof(T) == 8 ? 1e-14 : 1e-5) << param.spec.name << " " << i;
      }
    }
  }
}

TEST(Reducer, DeterministicWithAnyBucket) {
  for (const std::int64_t bytes : {std::int64_t{1}, std::int64_t{24}, std::int64_t{136}, kDefaultBucket}) {
    expect_sums<double>(Summation::deterministic, bytes);
    expect_sums<float>(Summation::deterministic, bytes);
  }
}

TEST(Reducer, Fast) {
  expect_sums<double>(Summation::fast, 136);
  expect_sums<float>(Summation::fast, kDefaultBucket);
}

// One rounding after the sum: (3/8 + 3/8) x 2^-12 is 1 after one rounding; rounding first would give 0.
TEST(Reducer, SnapsOnceAfterTheSum) {
  const Communicator& world = test::launch().world();
  if (world.size() != 2) GTEST_SKIP() << "NOT TESTED in this launch: that of 2 ranks runs it";
  const GridComms comms(world, test::grid_of(shape_of(2)), kSets);
  MemoryLedger ledger;
  Pool pool(ledger);
  ParamStore<double> store;
  Param<double>* param = store.declare(test::whole_spec("a", {3}, {Axis::data}));
  store.allocate(pool);
  test::set_values(param->grad, {0.375 * 0x1p-12, -0.25 * 0x1p-12, 0.5 * 0x1p-12 * (world.rank() == 0 ? 1 : 0)});
  Deck deck;
  deck.numerics.snap = 8;
  test::Updating<double> updating(deck, comms, store, pool);
  updating.reducer.reduce();
  EXPECT_EQ(test::get_values(param->grad), (std::vector<double>{0x1p-12, 0.0, 0.0}));
}

TEST(Reducer, SnapRefusesToLeaveTheExactRange) {
  const Communicator& world = test::launch().world();
  const GridComms comms(world, test::grid_of(shape_of(world.size())), kSets);
  MemoryLedger ledger;
  Pool pool(ledger);
  ParamStore<double> store;
  Param<double>* param = store.declare(test::whole_spec("a", {3}, {Axis::data}));
  store.allocate(pool);
  Deck deck;
  deck.numerics.snap = 8;
  test::Updating<double> updating(deck, comms, store, pool);
  // The last rank's gradient is too large: all ranks leave with the same error.
  if (world.rank() == world.size() - 1) test::set_values(param->grad, {0.0, -0x1p32, 0.0});
  try {
    updating.reducer.reduce();
    FAIL() << "2^32 is out of range";
  } catch (const Error& error) {
    EXPECT_EQ(error.caller(), Caller::all_ranks);
  }
}

}  // namespace
}  // namespace fourfold
