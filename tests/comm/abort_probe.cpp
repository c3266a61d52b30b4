// A job that goes wrong on rank 2 in the way that its argument names; abort_test.sh looks at how it ends.
#include <sys/types.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "comm/collectives.hpp"
#include "comm/launch.hpp"

namespace {

using fourfold::ExitCode;

// Allocates until operator new has nothing left.
void use_up_memory() {
  std::vector<char*> blocks;
  for (;;) blocks.push_back(new char[std::numeric_limits<std::ptrdiff_t>::max() / 2]);
}

struct ThrowsInItsDestructor {
  ~ThrowsInItsDestructor() noexcept(false) { throw std::runtime_error("a destructor failed"); }
};

void go_wrong(const std::string& mode) {
  if (mode == "throw") throw std::runtime_error("the loader lost its file");
  if (mode == "fail_one") fourfold::fail_one(ExitCode::storage, "the disk is full");
  if (mode == "assert") FOURFOLD_ASSERT(mode.empty(), "rows come from the loader");
  if (mode == "bad_alloc") use_up_memory();
  if (mode == "length") std::vector<char>().reserve(std::numeric_limits<std::size_t>::max());
  if (mode == "segv") std::raise(SIGSEGV);
  if (mode == "null") *reinterpret_cast<volatile int*>(std::strtoull("8", nullptr, 10)) = 1;
  if (mode == "abort") std::abort();
  if (mode == "fpe") std::raise(SIGFPE);
  if (mode == "terminate") ThrowsInItsDestructor();
  if (mode == "exit0") std::exit(0);
  if (mode == "quick_exit") _exit(0);
  if (mode == "sigkill") kill(getpid(), SIGKILL);
  if (mode == "lonely_all") fourfold::fail_all(ExitCode::input, "only this rank thinks so");
}

}  // namespace

int main(int argc, char** argv) {
  const fourfold::Launch launch(&argc, &argv);
  const fourfold::Communicator& world = launch.world();
  // shared_MODE: the others wait in each other's memory, not in MPI.
  std::string mode = argc > 1 ? argv[1] : "none";
  const bool shared = mode.starts_with("shared_");
  if (shared) mode = mode.substr(7);
  return fourfold::run_guarded(launch, [&] {
    std::vector<double> plain(1000, 1.0);
    std::span<double> data = plain;
    std::shared_ptr<std::byte> block;
    const bool elsewhere = mode == "elsewhere" && world.rank() == 2;
    if (shared && launch.share_memory().empty() && !elsewhere) {
      block = launch.shared_memory()->take(1000 * sizeof(double));
      data = {reinterpret_cast<double*>(block.get()), 1000};
    }
    fourfold::set_progress(12, "backward");
    if (mode == "all") fourfold::fail_all(ExitCode::input, "line 3: model.heads: 7 does not divide 256");
    if (mode == "all_pending" && world.size() > 1) {
      // Rank 1's message never comes: nobody may wait for it.
      fourfold::Pending receive;
      if (world.rank() == 0) receive = fourfold::start_receive<double>(world, data, 1, 7, fourfold::Phase::forward);
      fourfold::fail_all(ExitCode::input, "an error of all ranks with a receive under way");
    }
    const bool bad = world.rank() == (world.size() > 2 ? 2 : 0);
    fourfold::Pending pending;
    if (bad && mode != "none") {
      if (mode == "pending" && world.size() > 1) {
        pending = fourfold::start_receive<double>(world, data, 0, 7, fourfold::Phase::forward);
        throw std::runtime_error("thrown past a receive that nobody answers");
      }
      go_wrong(mode);
    }
    // The others wait for rank 2 here.
    fourfold::all_reduce_sum<double>(world, data, fourfold::Summation::deterministic, fourfold::Phase::backward);
    if (world.rank() == 0) std::printf("done with %d ranks\n", world.size());
    return 0;
  });
}
