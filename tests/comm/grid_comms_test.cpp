// Communicators of process grids against the grid's arithmetic, for every layout of the ranks at hand; agreements.
#include <bit>

#include "comm/agree.hpp"
#include "comm/comm_fixture.hpp"
#include "comm/grid_comms.hpp"
#include "test_support.hpp"

namespace fourfold::test {
namespace {

class Grids : public CommTest {};

// Sums 2^rank over the group: the sum's bits are its members.
void expect_members(const Communicator& group, const std::vector<int>& members, int world_rank) {
  ASSERT_EQ(group.size(), static_cast<int>(members.size()));
  EXPECT_EQ(members[static_cast<std::size_t>(group.rank())], world_rank);
  std::int64_t bits = std::int64_t{1} << world_rank;
  all_reduce_sum<std::int64_t>(group, {&bits, 1}, Summation::fast, Phase::setup);
  std::int64_t expected = 0;
  for (const int member : members) expected |= std::int64_t{1} << member;
  EXPECT_EQ(bits, expected) << group.name();
}

void check_grid(const Communicator& world, const ProcessGrid& grid) {
  const GridComms comms(world, grid, dense_axis_sets());
  EXPECT_EQ(comms.here(), grid.coordinates(world.rank()));
  for (const GroupKey axes : dense_axis_sets()) {
    SCOPED_TRACE(axes.name());
    EXPECT_EQ(comms.group(axes).name(), axes.name());
    expect_members(comms.group(axes), grid.group(world.rank(), axes), world.rank());
  }
}

TEST_F(Grids, EveryDenseLayoutOfEveryCut) {
  const int ranks = world().size();
  std::vector<ProcessGrid> grids;
  for (int stages = 1; stages <= ranks; ++stages) {
    if (ranks % stages != 0) continue;
    for (const DenseShape& dense : dense_factorisations(ranks / stages)) {
      const MoeShape moe{.replica = static_cast<int>(dense.size())};
      grids.emplace_back(std::vector<StageShape>(static_cast<std::size_t>(stages), StageShape{dense, moe}));
    }
  }
  for (const ProcessGrid& grid : sample(grids, 20)) check_grid(world(), grid);
}

TEST_F(Grids, PlacementPermutesTheRanks) {
  const int ranks = world().size();
  std::vector<int> placement(static_cast<std::size_t>(ranks));
  for (int slot = 0; slot < ranks; ++slot) placement[static_cast<std::size_t>(slot)] = (2 * ranks + 2 - slot) % ranks;
  for (const DenseShape& dense : dense_factorisations(ranks)) {
    if (dense.row < dense.col) continue;
    check_grid(world(), ProcessGrid({StageShape{dense, MoeShape{.expert = ranks}}}, placement));
  }
}

TEST_F(Grids, MoeSetsAndBothViews) {
  const int ranks = world().size();
  const std::vector<GroupKey> sets = {{Axis::expert},        {Axis::replica}, {Axis::moe_row},
                                      {Axis::moe_col},       {Axis::data},    {Axis::replica, Axis::expert},
                                      {Axis::row, Axis::col}};
  for (const MoeShape& moe : sample(moe_factorisations(ranks), 8)) {
    const ProcessGrid grid({StageShape{DenseShape{.data = ranks}, moe}});
    const GridComms comms(world(), grid, sets);
    for (const GroupKey& axes : sets)
      expect_members(comms.group(axes), grid.group(world().rank(), axes), world().rank());
  }
}

// The machine file's nodes in place of the real ones: ranks 0 1 2 | 3 4 5 | ...
TEST_F(Grids, EmulatedNodes) {
  const int ranks = world().size();
  launch().emulate_nodes(3);
  const GridComms comms(world(), ProcessGrid({StageShape{DenseShape{.data = ranks}, MoeShape{.replica = ranks}}}),
                        dense_axis_sets());
  const Communicator& data = comms.group(AxisSet{Axis::data});
  for (int rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(world().node_of(rank), rank / 3);
    EXPECT_EQ(data.node_of(rank), rank / 3);
  }
  EXPECT_EQ(world().between_nodes(), ranks > 3);
  EXPECT_EQ(data.between_nodes(), ranks > 3);
  EXPECT_FALSE(Communicator(world(), {world().rank()}, "alone").between_nodes());
  std::int64_t one = 1;
  all_reduce_sum<std::int64_t>(data, {&one, 1}, Summation::fast, Phase::forward);
  const CommSums sums = launch().ledger().group_sum("data");
  EXPECT_EQ(sums.bytes_between_nodes, ranks > 3 ? sums.ring_bytes : 0);
  launch().emulate_nodes(ranks);  // this host is one node
}

TEST_F(Grids, TheStageGroupOfUnequalStagesIsAllRanks) {
  if (world().size() < 3) return;
  const int rest = world().size() - 1;
  const ProcessGrid grid(
      {StageShape{DenseShape{.data = 1}, MoeShape{}}, StageShape{DenseShape{.data = rest}, MoeShape{.expert = rest}}});
  const GridComms comms(world(), grid, dense_axis_sets());
  EXPECT_EQ(comms.group({Axis::data}).size(), world().rank() == 0 ? 1 : rest);
  EXPECT_EQ(comms.group({Axis::stage}).size(), world().size());
  EXPECT_EQ(comms.group({Axis::stage}).rank(), world().rank());
  EXPECT_EQ(comms.group({Axis::stage}).name(), "stage");
  try {
    comms.group({Axis::stage, Axis::row});
    ADD_FAILURE() << "a group that nobody asked for";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("data+depth"), std::string::npos) << error.what();
  }
}

// With only data above one, eight sets have all ranks as members: one communicator serves them.
TEST_F(Grids, SetsWithTheSameMembersShareACommunicator) {
  const int ranks = world().size();
  const ProcessGrid grid({StageShape{DenseShape{.data = ranks}, MoeShape{.expert = ranks}}});
  const GridComms comms(world(), grid, dense_axis_sets());
  EXPECT_EQ(comms.made(), ranks > 1 ? 1 : 0);
  EXPECT_EQ(mpi_traffic().communicators, comms.made());
  EXPECT_EQ(mpi_traffic().introductions, launch().shared_memory() != nullptr ? comms.made() : 0);
  EXPECT_EQ(comms.group({Axis::data, Axis::row}).size(), ranks);
  EXPECT_EQ(comms.group({Axis::row}).size(), 1);
  EXPECT_NE(comms.summary().find(ranks > 1 ? "; 1 MPI communicators" : "no group"), std::string::npos)
      << comms.summary();
}

TEST_F(Grids, AWorldOfAnotherSizeIsAnAssertion) {
  const ProcessGrid grid({StageShape{DenseShape{.data = 64}, MoeShape{.expert = 64}}});
  EXPECT_THROW(GridComms(world(), grid, dense_axis_sets()), Error);
}

// Every communicator that is made is freed once, however often it moves. (Leaks show in no result: MPI has thousands.)
TEST_F(Grids, CommunicatorsAreFreedOnce) {
  const int made_each = world().size() > 1 ? 1 : 0;
  std::vector<int> all(static_cast<std::size_t>(world().size()));
  for (std::size_t r = 0; r < all.size(); ++r) all[r] = static_cast<int>(r);
  for (int i = 1; i <= 5; ++i) {
    {
      Communicator one(world(), all, "one");
      Communicator moved = std::move(one);
      one = std::move(moved);
      EXPECT_EQ(one.size(), world().size());
      EXPECT_EQ(one.name(), "one");
      EXPECT_EQ(moved.size(), 0);  // NOLINT(bugprone-use-after-move): an empty communicator is what is tested
      EXPECT_EQ(mpi_traffic().freed, (i - 1) * made_each);
    }
    EXPECT_EQ(mpi_traffic().communicators, i * made_each);
    EXPECT_EQ(mpi_traffic().freed, i * made_each);
  }
  // Aliases share theirs, which goes with the last of them.
  clear_mpi_traffic();
  {
    const ProcessGrid grid({StageShape{DenseShape{.data = world().size()}, MoeShape{.expert = world().size()}}});
    const GridComms comms(world(), grid, dense_axis_sets());
    EXPECT_EQ(mpi_traffic().freed, 0);
  }
  EXPECT_EQ(mpi_traffic().freed, made_each);
}

using Agreements = CommTest;

TEST_F(Agreements, Any) {
  for (int odd = 0; odd < world().size(); ++odd) {
    EXPECT_TRUE(agree_any(world(), world().rank() == odd));
    EXPECT_EQ(agree_all(world(), world().rank() != odd), false);
  }
  EXPECT_FALSE(agree_any(world(), false));
  EXPECT_TRUE(agree_all(world(), true));
}

TEST_F(Agreements, BroadcastString) {
  for (int root = 0; root < world().size(); ++root)
    for (const std::size_t length : {std::size_t{0}, std::size_t{1}, std::size_t{100000}}) {
      const std::string mine(length, static_cast<char>('a' + world().rank()));
      EXPECT_EQ(broadcast_string(world(), mine, root), std::string(length, static_cast<char>('a' + root)));
    }
}

TEST_F(Agreements, GatherStrings) {
  // Rank 1 has nothing to say.
  const auto text = [](int r) {
    return r == 1 ? std::string() : std::string(static_cast<std::size_t>(r) * 1000 + 3, 'x');
  };
  const std::vector<std::string> texts = gather_strings(world(), text(world().rank()));
  ASSERT_EQ(texts.size(), world().rank() == 0 ? static_cast<std::size_t>(world().size()) : 0u);
  for (std::size_t r = 0; r < texts.size(); ++r) EXPECT_EQ(texts[r], text(static_cast<int>(r)));
}

TEST_F(Agreements, FirstDifferent) {
  const std::uint64_t high = ~std::uint64_t{0};
  EXPECT_EQ(first_different(world(), high), -1);
  for (int odd = 1; odd < world().size(); ++odd)
    EXPECT_EQ(first_different(world(), world().rank() >= odd ? high - 1 : high), odd);
}

TEST_F(Agreements, HashIsFnv1a) {
  EXPECT_EQ(hash_bytes(""), 0xcbf29ce484222325u);
  EXPECT_EQ(hash_bytes("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(hash_bytes("foobar"), 0x85944171f73967e8u);
}

}  // namespace
}  // namespace fourfold::test
