#include "job.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>

#include "base/log.hpp"
#include "base/memory_ledger.hpp"
#include "comm/agree.hpp"
#include "comm/cpu_check.hpp"
#include "comm/launch.hpp"
#include "deck/derive.hpp"
#include "deck_file.hpp"
#include "devices.hpp"
#include "kernels/gemm.hpp"
#include "train/pipeline.hpp"
#include "train/watch_limits.hpp"

namespace fourfold {

Launch launch_ranks() {
  int argc = 1;
  char name[] = "fourfold";
  char* words[] = {name, nullptr};
  char** argv = words;
  return Launch(&argc, &argv);
}

LoadedText shared_text(const Communicator& world, const std::string& file) {
  const LoadedText mine = world.rank() == 0 ? load_text(file) : LoadedText{};
  const std::string problem = broadcast_string(world, mine.problem);
  return LoadedText{broadcast_string(world, mine.text), problem};
}

namespace {

constexpr std::int64_t kMostSequences = 8;  // of a coordinate in a pass, where the deck does not say

// The schedule is the training's.
void one_chunk_a_stage(ParallelDeck& parallel) {
  parallel.schedule = "1f1b";
  parallel.interleave = 1;
  parallel.cuts.clear();
}

Deck fitted_to_stage_grids(Deck deck, int ranks) {
  if (*deck_ranks(deck) != ranks) {
    fail_all(ExitCode::input, "parallel.stage_grids has " + std::to_string(*deck_ranks(deck)) + " ranks, the job " +
                                  std::to_string(ranks) +
                                  "; start that many, or add parallel.stage_grids=[] parallel.stages=1");
  }
  std::int64_t coordinates = 1;
  for (const DenseShape& grid : deck.parallel.stage_grids) {
    coordinates = std::max(coordinates, deck.parallel.coordinates(grid));
  }
  deck.batch = BatchDeck{std::min(deck.batch.global, kMostSequences * coordinates), 0, 1};
  one_chunk_a_stage(deck.parallel);
  return deck;
}

std::string unfilled_text(const ParallelDeck& parallel, int ranks) {
  const DenseShape& dense = parallel.dense;
  const std::int64_t each = capped_product({dense.depth, dense.row, dense.col});
  std::string text = fmt::format(
      "{} ranks do not fill the deck's grid (parallel): choose a multiple of {} = stages {} x depth {} x row {} x col "
      "{}",
      ranks, capped_product({parallel.stages, each}), parallel.stages, dense.depth, dense.row, dense.col);
  if (parallel.moe && capped_product({parallel.moe->expert, parallel.moe->row, parallel.moe->col}) > 1) {
    const MoeShape& moe = *parallel.moe;
    text += fmt::format(", and of {} = stages {} x expert {} x row {} x col {}",
                        capped_product({parallel.stages, moe.expert, moe.row, moe.col}), parallel.stages, moe.expert,
                        moe.row, moe.col);
  }
  return text + "; or give another grid, such as parallel.stages=1";
}

Deck fitted_to(Deck deck, int ranks) {
  if (!deck.parallel.stage_grids.empty()) return fitted_to_stage_grids(std::move(deck), ranks);
  const std::int64_t micro = deck.batch.micro > 0 ? deck.batch.micro : std::min(deck.batch.global, kMostSequences);
  deck.batch = BatchDeck{0, micro, 1};
  deck.parallel.dense.data = 0;
  one_chunk_a_stage(deck.parallel);
  if (deck.parallel.moe) deck.parallel.moe->replica = 0;
  derive_grid(deck, ranks);
  if (deck.parallel.dense.data == 0 || deck.parallel.moe->replica == 0) {
    fail_all(ExitCode::input, unfilled_text(deck.parallel, ranks));
  }
  return deck;
}

std::optional<Deck> deck_of_job(const Communicator& world, const DeckArguments& arguments, Purpose purpose) {
  const LoadText load = [&world](const std::string& file) { return shared_text(world, file); };
  const LoadedText loaded = load(arguments.file);
  if (!loaded.problem.empty()) {
    fail_all(ExitCode::input, "cannot read the deck " + arguments.file + ": " + loaded.problem);
  }
  const DeckText text{arguments.file, loaded.text};
  std::optional<std::int64_t> ranks;
  if (purpose == Purpose::train) ranks = world.size();
  std::optional<Deck> deck =
      checked_deck(text, arguments.overrides, ranks, world.rank() == 0, purpose == Purpose::train ? load : LoadText{});
  if (deck && purpose == Purpose::use) deck = fitted_to(std::move(*deck), world.size());
  return deck;
}

// Evaluations and generations of a run go on beside its training and beside each other.
std::string ring_folder(const Communicator& world, const Deck& deck, Purpose purpose) {
  const std::string folder = deck.run.folder + "/ranks";
  if (purpose == Purpose::train) return folder;
  return folder + "_" + broadcast_string(world, std::to_string(getpid()));
}

void watch(const Launch& launch, const Deck& deck, Purpose purpose) {
  const std::string problem = launch.watch(
      {ring_folder(launch.world(), deck, purpose),
       [limits = deck.watchdog](std::string_view phase) { return limit_of(limits, phase); }, purpose == Purpose::use});
  if (!problem.empty()) log_warn("no watchdog: " + problem);
  if (deck.comm.check_calls) launch.check_calls();
}

}  // namespace

int run_job(const DeckArguments& arguments, Purpose purpose,
            const std::function<ExitCode(const Deck&, const GridComms&, Pool&)>& work) {
  if (arguments.file.empty()) fail_all(ExitCode::input, "a DECK is missing");

  // 1. Launch.
  const Launch launch = launch_ranks();
  const Communicator& world = launch.world();
  set_log_rank(world.rank());

  return run_guarded(launch, [&]() -> int {
    // 2. The deck, before anything is allocated.
    const std::optional<Deck> deck = deck_of_job(world, arguments, purpose);
    if (!deck) return static_cast<int>(ExitCode::input);

    // 3. Kokkos, and as many threads for the product libraries: one, or where Kokkos has OpenMP what OMP_NUM_THREADS
    // says.
    watch(launch, *deck, purpose);
    const Devices devices(world);
    if (deck->emulate.description) {
      launch.emulate(*deck->emulate.description);
    } else if (!deck->emulate.stage_times.empty()) {
      launch.emulate(free_machine(world.size()));
    }
    const auto kokkos = devices.start_kokkos();
    kernels::set_product_threads(Kokkos::DefaultHostExecutionSpace().concurrency());
    check_cores(launch, Kokkos::DefaultHostExecutionSpace().concurrency());
    set_region_hooks(Devices::region_hooks());

    // 4. Memory and communicators.
    MemoryLedger memory;
    Pool pool(memory);
    const auto attached = devices.attach(launch, pool, deck->comm.shared_memory);
    const ProcessGrid grid = process_grid(*deck);
    const int stage = grid.coordinates(world.rank()).stage;
    const GridComms comms(world, grid, rank_groups(*deck, plan_pipeline(*deck), stage));

    // 5. The work.
    return static_cast<int>(work(*deck, comms, pool));
  });
}

}  // namespace fourfold
