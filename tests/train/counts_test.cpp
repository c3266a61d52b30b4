// What a step costs, in numbers that no machine changes: FLOPs and bytes of its products, kernel launches by name,
// messages and bytes sent, allocations. Held equal to counts.txt: a change that makes a step dearer shows as a line.
// After one that is meant: FOURFOLD_WRITE_EXPECTED=1 mpirun -n 8 .../train_ledger --gtest_filter='Counts*', and read
// the difference.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "comm/launch.hpp"
#include "comm/ledger.hpp"
#include "model/precision.hpp"
#include "mpi_test.hpp"
#include "runs.hpp"

namespace fourfold {
namespace {

const std::string kFile = FOURFOLD_SOURCE_DIR "/tests/train/counts.txt";

std::map<std::string, std::int64_t> launches;

void count_launch(const char* name, std::uint32_t, std::uint64_t*) {
  ++launches[name];
}

// While it lives every kernel is counted under its name.
class CountLaunches {
 public:
  CountLaunches() {
    launches.clear();
    set(count_launch);
  }
  ~CountLaunches() { set(nullptr); }
  CountLaunches(const CountLaunches&) = delete;
  CountLaunches& operator=(const CountLaunches&) = delete;

 private:
  static void set(void (*function)(const char*, std::uint32_t, std::uint64_t*)) {
    Kokkos::Tools::Experimental::set_begin_parallel_for_callback(function);
    Kokkos::Tools::Experimental::set_begin_parallel_reduce_callback(function);
    Kokkos::Tools::Experimental::set_begin_parallel_scan_callback(function);
  }
};

struct Case {
  std::string name;
  int ranks;
  std::vector<std::string> overrides;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> list = {
      {"one rank", 1, {}},
      {"one rank, gelu, layer norm, biases, learned positions, two micro-batches",
       1,
       {"model.norm=layer", "model.ffn.kind=gelu", "model.bias=all", "model.positions=learned",
        "batch.micro_batches=2"}},
      {"data 2", 2, {"parallel.dense.data=2"}},
      {"data 4, sharded", 4, {"parallel.dense.data=4", "optimizer.shard=data"}},
      {"row 2, sequence sharded", 2, {"parallel.dense.row=2", "parallel.sequence_shard=true"}},
      {"data 1, depth 2, row 2, col 2", 8, {"parallel.dense.depth=2", "parallel.dense.row=2", "parallel.dense.col=2"}},
      {"col 2, attention over col", 2, {"parallel.dense.col=2", "attention.split=col"}},
      {"bf16, data 2, sharded, depth 2, row 2",
       8,
       {"precision.compute=bf16", "parallel.dense.data=2", "parallel.dense.depth=2", "parallel.dense.row=2",
        "optimizer.shard=data"}},
      {"depth 2 of sequences", 2, {"parallel.dense.depth=2", "parallel.depth_splits=sequence"}},
  };
  return list;
}

// The third step of the first rank: the first two allocate.
template <class T>
std::string counts_of(const Case& c, const Deck& deck, const Communicator& group) {
  test::Training<T> training(deck, group);
  training.trainer.step();
  training.trainer.step();
  group.ledger().clear();
  const std::int64_t allocations = training.pool.allocations(), flops = group.clock().flops(),
                     bytes = group.clock().bytes();
  std::map<std::string, std::int64_t> kernels;
  {
    const CountLaunches count;
    training.trainer.step();
    kernels = launches;
  }
  std::ostringstream text;
  text << "# " << c.name << "\nFLOPs " << group.clock().flops() - flops << "\nbytes of products and the update "
       << group.clock().bytes() - bytes << "\nallocations " << training.pool.allocations() - allocations
       << "\npeak bytes " << training.memory.peak_total() << "\n";
  for (const auto& [key, sums] : group.ledger().sums()) {
    text << phase_name(key.phase) << " " << operation_name(key.operation) << " " << key.group << ": " << sums.calls
         << " calls, " << sums.messages << " messages, " << sums.ring_bytes << " bytes\n";
  }
  for (const auto& [name, count] : kernels) text << "kernel " << name << " " << count << "\n";
  return text.str();
}

TEST(Counts, AStepCostsWhatItDid) {
  std::string counted;
  for (const Case& c : cases()) {
    test::on_ranks(c.ranks, [&](const Communicator& group) {
      const Deck deck = test::deck_of(test::small_transformer(), c.overrides, group.size());
      const std::string text = in_precision(deck.precision, [&]<class T>() { return counts_of<T>(c, deck, group); });
      if (group.rank() == 0) counted += text + "\n";
    });
  }
  if (test::launch().world().rank() != 0) return;
  if (std::getenv("FOURFOLD_WRITE_EXPECTED") != nullptr) {
    std::ofstream(kFile) << counted;
    return;
  }
  std::ifstream file(kFile);
  std::stringstream expected;
  expected << file.rdbuf();
  EXPECT_EQ(counted, expected.str());
}

}  // namespace
}  // namespace fourfold
