// main() of tests that run under MPI: every rank's failure fails the test and reaches the log with its rank, an
// exception ends the job, and a test case that hangs ends it with its name.
#include <gtest/gtest.h>

#include <unistd.h>

#include <Kokkos_Core.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "comm/agree.hpp"
#include "comm/launch.hpp"
#include "mpi_test.hpp"
#include "test_support.hpp"

namespace {

const fourfold::Launch* the_launch = nullptr;

// For one test case; full lists are as much longer as tests/run.sh lets their tests run.
unsigned hang_seconds() {
  return fourfold::test::full() ? 3600 : 240;
}
char test_name[256] = "";

void on_hang(int) {
  const char text[] = ": this test case hangs\n";
  if (write(STDERR_FILENO, test_name, std::strlen(test_name)) < 0 || write(STDERR_FILENO, text, sizeof text - 1) < 0)
    _exit(2);
  _exit(1);
}

class HangWatch : public testing::EmptyTestEventListener {
 public:
  explicit HangWatch(int rank) : rank_(rank) { std::signal(SIGALRM, on_hang); }
  void OnTestStart(const testing::TestInfo& test) override {
    std::snprintf(test_name, sizeof test_name, "[rank %d] %s.%s", rank_, test.test_suite_name(), test.name());
    alarm(hang_seconds());
  }
  void OnTestEnd(const testing::TestInfo&) override { alarm(0); }

 private:
  int rank_;
};

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

const Launch& launch() {
  return *the_launch;
}

}  // namespace fourfold::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const fourfold::Launch launch(&argc, &argv);
  const Kokkos::ScopeGuard kokkos(argc, argv);
  the_launch = &launch;
  // As the program does, but from the first byte on, for tests are small. FOURFOLD_TEST_SHARED_MEMORY=off: without.
  const char* shared = std::getenv("FOURFOLD_TEST_SHARED_MEMORY");
  if (shared == nullptr || std::strcmp(shared, "off") != 0) {
    const std::string problem = launch.share_memory();
    if (!problem.empty() && launch.world().rank() == 0)
      std::printf("NOT TESTED: no shared memory: %s\n", problem.c_str());
    launch.share_from(1);
  }
  const fourfold::Communicator& world = launch.world();
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  listeners.Append(new HangWatch(world.rank()));
  // A rank that throws has left its collectives: the others would wait for it.
  if (world.size() > 1) testing::GTEST_FLAG(catch_exceptions) = false;
  if (world.rank() != 0) {
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new RankPrinter(world.rank()));
  }
  return fourfold::run_guarded(launch, [&] {
    int failed = RUN_ALL_TESTS();
    if (fourfold::agree_any(world, failed != 0)) failed = 1;
    return failed;
  });
}
