// main() of tests that run under MPI: every rank's failure fails the test and reaches the log with its rank.
#include <gtest/gtest.h>

#include <Kokkos_Core.hpp>
#include <cstdio>

#include "comm/collectives.hpp"
#include "comm/launch.hpp"
#include "mpi_test.hpp"

namespace {

const fourfold::Launch* the_launch = nullptr;

class RankPrinter : public testing::EmptyTestEventListener {
 public:
  explicit RankPrinter(int rank) : rank_(rank) {}
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "[rank %d] %s:%d: %s\n", rank_, result.file_name() != nullptr ? result.file_name() : "?",
                 result.line_number(), result.message());
  }

 private:
  int rank_;
};

}  // namespace

namespace fourfold::test {

const Launch& launch() { return *the_launch; }

}  // namespace fourfold::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const fourfold::Launch launch(&argc, &argv);
  const Kokkos::ScopeGuard kokkos(argc, argv);
  the_launch = &launch;
  const fourfold::Communicator& world = launch.world();
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  if (world.rank() != 0) {
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new RankPrinter(world.rank()));
  }
  return fourfold::run_guarded(launch, [&] {
    std::int32_t failed = RUN_ALL_TESTS();
    fourfold::all_reduce_max<std::int32_t>(world, {&failed, 1}, fourfold::Phase::control);
    return failed;
  });
}
